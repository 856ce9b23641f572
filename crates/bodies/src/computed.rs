//! Fields that are computed from others.

use smallvec::SmallVec;

use crate::Unreadable;
use crate::fields::{FieldIndex, FieldMask, FieldName, FieldSet, Kind, Record, Records, Value};
use crate::graphql::{self, GraphqlRequest, MAX_TOKENS, UrlParameters};

/// Computes the fields of `mask` that are not read, of each record.
///
/// # Errors
/// Why they are unknown.
pub(crate) fn compute(
    fields: &FieldSet,
    mask: FieldMask,
    records: &mut [Record],
    url: Option<&UrlParameters>,
) -> Result<(), Unreadable> {
    let Some(parts) = fields.graphql(mask) else { return Ok(()) };
    let mut tokens = MAX_TOKENS;
    for record in records {
        let parts = parts.map(|part| record[part].as_ref());
        let Some(request) = GraphqlRequest::from_parts(parts, url)? else { continue };
        let mut measured = SmallVec::<[(FieldIndex, u64); 1]>::new();
        for (index, field) in fields.fields().iter().enumerate() {
            if let FieldName::Graphql(complexity) = field
                && mask.contains(index)
            {
                measured.push((index, graphql::measure(complexity, &request, &mut tokens)?));
            }
        }
        for (index, units) in measured {
            record[index] = Some(Value { kind: Kind::Number, text: units.to_string().into() });
        }
    }
    Ok(())
}

/// Returns the values that a request without a body has in its URL.
///
/// # Errors
/// Why they are unknown.
pub fn without_body(
    fields: &FieldSet,
    mask: FieldMask,
    url: Option<&UrlParameters>,
) -> Result<Records, Unreadable> {
    let mut records = Records::from_iter([fields.empty_record()]);
    compute(fields, mask, &mut records, url)?;
    Ok(records)
}
