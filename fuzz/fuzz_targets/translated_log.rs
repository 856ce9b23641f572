#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::fuzzing::translated_log(data));
