//! See the module of the same name.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| uwarp_fuzz::ddp_segment::run(data));
