//! See `kedge_sim::fuzz::image`.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|input: &[u8]| kedge_sim::fuzz::image(input));

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::io::Result<()> {
    kedge_sim::fuzz::run_files(kedge_sim::fuzz::image)
}
