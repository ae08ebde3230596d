//! See `kedge_sim::fuzz::fsck`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kedge_sim::fuzz::fsck(input));
