//! See `kedge_sim::fuzz::node`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kedge_sim::fuzz::node(input));
