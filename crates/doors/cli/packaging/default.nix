# nix-build crates/doors/cli/packaging
{ pkgs ? import <nixpkgs> { } }:

pkgs.callPackage ./kedgefs.nix { }
