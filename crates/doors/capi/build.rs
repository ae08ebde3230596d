//! Sets the name (soname) by which programs request the shared library from the loader. Its number
//! changes with each release that breaks programs built for the last one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkedgefs.so.0");
    }
}
