#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::fuzzing::load_report(data));
