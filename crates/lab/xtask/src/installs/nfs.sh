# In a clean system with the programs of libnfs, and the network of the server.
echo kept > note
# libnfs takes what is before the last slash as the export.
where='nfs://127.0.0.1//'
ports='version=3&nfsport=2049&mountport=2049'
for _ in $(seq 100); do
    if nfs-ls "$where?$ports"; then break; fi
    sleep 0.1
done
nfs-cp note "${where}note?$ports"
test "$(nfs-cat "${where}note?$ports")" = kept
