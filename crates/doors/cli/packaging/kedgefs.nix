# Builds the program from this checkout, with the versions of Cargo.lock.
{ lib, rustPlatform }:

let
  root = ../../../..;
  workspace = (builtins.fromTOML (builtins.readFile (root + "/Cargo.toml"))).workspace.package;
in
rustPlatform.buildRustPackage {
  pname = "kedgefs";
  inherit (workspace) version;

  src = lib.cleanSourceWith {
    src = lib.cleanSource root;
    filter = path: _type: baseNameOf path != "target";
  };
  cargoLock.lockFile = root + "/Cargo.lock";
  cargoBuildFlags = [ "-p" "kedge" ];
  # They mount, which the sandbox of a build forbids.
  doCheck = false;

  # Man pages, completions, the unit, and the links for mount(8), mkfs(8) and fsck(8).
  postInstall = ''
    $out/bin/kedge install-helpers --prefix $out --sbin $out/sbin
  '';

  meta = {
    description = "A crash-consistent file system in one image file, served by a process";
    license = with lib.licenses; [ mit asl20 ];
    mainProgram = "kedge";
    platforms = [ "x86_64-linux" "aarch64-linux" ];
  };
}
