#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir::fuzzing::header_blocks(data));
