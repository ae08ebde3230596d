//! See `kedge_hostile::nfs`.
#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|input: &[u8]| kedge_hostile::check(&kedge_hostile::nfs::TARGET, input));

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::io::Result<()> {
    kedge_hostile::run_files(&kedge_hostile::nfs::TARGET)
}
