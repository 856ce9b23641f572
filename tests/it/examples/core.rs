//! Examples that depend on the time and the country: the compiled policy gets simulated times and addresses.

use super::example;
use crate::recipes::core::{HOUR, MINUTE, RecipeRules};

#[test]
fn geo_night_example_limits_one_country_at_night() {
    let database = include_bytes!("../../data/city.mmdb");
    let text = example("geo-night.yaml").replace("${COUNTRY_DATABASE:-../tests/data/city.mmdb}", "city.mmdb");
    let night = RecipeRules::from_text(&text, &[("city.mmdb", database)]);
    let brazil = "198.51.100.7";
    // São Paulo is at UTC-3 all year round, so its night is 03:00 to 09:00.
    let admitted = |requests: usize, from: u64| {
        // Spread over a minute, so that the limit of the address does not reject any.
        (0..requests)
            .filter(|turn| night.is_admitted(brazil, from + *turn as u64 * 59 / requests as u64))
            .count()
    };
    assert_eq!(admitted(2000, 2 * HOUR), 2000);
    assert_eq!(admitted(2000, 3 * HOUR), 1000);
    assert_eq!(admitted(2000, 3 * HOUR + MINUTE), 1000);
    assert_eq!(admitted(2000, 9 * HOUR), 2000);
}
