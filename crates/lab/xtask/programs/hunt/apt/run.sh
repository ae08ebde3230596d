# A package is installed, promised when apt-get has exited with 0.
export DEBIAN_FRONTEND=noninteractive
apt-get -y -q -o Dir::State="$KEDGE_DIR/var/lib/apt" -o Dir::State::status="$KEDGE_DIR/var/lib/dpkg/status" \
    -o Dir::Cache="$PROGRAM_TEMP/cache" -o Dir::Log="$PROGRAM_TEMP/log" -o Dir::Etc=/dev/null -o Dir::Etc::parts=/dev/null \
    -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o DPkg::Options::="--root=$KEDGE_DIR" -o DPkg::Options::=--log=/dev/null -o DPkg::Options::=--no-force-unsafe-io \
    -o DPkg::Pre-Invoke= -o DPkg::Post-Invoke= --no-install-recommends install "$PROGRAM_TEMP/zoo.deb" > "$PROGRAM_TEMP/out" 2>&1 || { tail -3 "$PROGRAM_TEMP/out"; exit 1; }
echo "ack installed"
