# Two installations that know each other, with a folder to send and one to receive.
set -e
cd "$PROGRAM_TEMP"
mkdir -p far/.stfolder "$PROGRAM_FROM/near/.stfolder"
for side in far near; do syncthing generate --home="$side.home" --no-default-folder > "$side.log" 2>&1; done
far=$(syncthing --device-id --home=far.home) near=$(syncthing --device-id --home=near.home)
for side in far near; do
    case $side in far) port=22041 kind=sendonly path="$PROGRAM_TEMP/far" ;; near) port=22042 kind=receiveonly path=@NEAR@ ;; esac
    cat > $side.home/config.xml <<END
<configuration version="36">
  <folder id="zoo" path="$path" type="$kind" rescanIntervalS="3600" fsWatcherEnabled="false">
    <device id="$far"/><device id="$near"/><minDiskFree unit="%">0</minDiskFree><maxConflicts>10</maxConflicts>
  </folder>
  <device id="$far" name="far"><address>tcp://127.0.0.1:22041</address></device>
  <device id="$near" name="near"><address>tcp://127.0.0.1:22042</address></device>
  <gui enabled="true" tls="false"><address>127.0.0.1:$((port + 1000))</address><apikey>zoo</apikey></gui>
  <options>
    <listenAddress>tcp://127.0.0.1:$port</listenAddress>
    <globalAnnounceEnabled>false</globalAnnounceEnabled><localAnnounceEnabled>false</localAnnounceEnabled>
    <relaysEnabled>false</relaysEnabled><natEnabled>false</natEnabled><urAccepted>-1</urAccepted>
    <crashReportingEnabled>false</crashReportingEnabled><startBrowser>false</startBrowser><reconnectionIntervalS>1</reconnectionIntervalS>
  </options>
</configuration>
END
done
