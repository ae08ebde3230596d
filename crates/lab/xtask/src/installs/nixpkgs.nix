# What the derivation takes from nixpkgs: it shows what it was called with.
let
  lib = {
    cleanSource = src: src;
    cleanSourceWith = { src, filter }:
      assert !(filter "/a/target" "directory") && filter "/a/Cargo.toml" "regular"; toString src;
    licenses = { mit = "MIT"; asl20 = "Apache-2.0"; };
  };
  rustPlatform.buildRustPackage = { pname, version, src, cargoLock, cargoBuildFlags, doCheck, postInstall, meta }:
    assert builtins.pathExists cargoLock.lockFile && builtins.pathExists (src + "/Cargo.toml");
    { inherit pname version cargoBuildFlags doCheck postInstall meta; };
in
