# Starts a broker on the directory $dir, with its socket in $socket. Its process is $server.
cat > "$socket.conf" <<EOF
listener 0 $socket
allow_anonymous true
user root
persistence true
persistence_location $dir/
autosave_on_changes true
autosave_interval 1
EOF
mosquitto -c "$socket.conf" > "$socket.log" 2>&1 &
server=$!
until test -S "$socket"; do
    kill -0 $server 2> /dev/null || { echo "the broker does not start:"; tail -2 "$socket.log"; exit 1; }
    sleep 0.02
done
