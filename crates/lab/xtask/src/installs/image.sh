# $1 is an empty directory, $2 the image, $3 a system with a client of NFS and $4 its script; the rest
# is `podman run` with its options.
place=$1 image=$2 client=$3 script=$4
shift 4
run=("$@" "--volume=$place:/srv:rshared")
podman=("${run[@]:0:1}")
end() {
    umount -l "$place/mnt" || true
    for name in kedgefs-try-mount kedgefs-try-serve; do podman rm --force --ignore "$name"; done
    umount -l "$place" || true
    podman rmi "$image"
}
trap end EXIT
# What the container mounts appears outside of it only below a shared mount.
mount --bind "$place" "$place"
mount --make-shared "$place"

"${run[@]}" --rm "$image" --version
"${run[@]}" --name kedgefs-try-mount --detach "$image" mount --foreground --create 64M /srv/disk.kedge /srv/mnt
wait_for() { for _ in $(seq 200); do if mountpoint -q "$place/mnt"; then return; fi; sleep 0.05; done; false; }
wait_for
echo kept > "$place/mnt/a"
sync "$place/mnt/a"
# A killed container leaves what was synced.
podman kill --signal KILL kedgefs-try-mount
podman wait kedgefs-try-mount
umount -l "$place/mnt" || true
podman rm kedgefs-try-mount
"${run[@]}" --name kedgefs-try-mount --detach "$image" mount --foreground /srv/disk.kedge /srv/mnt
wait_for
test "$(cat "$place/mnt/a")" = kept
# A stopped one unmounts.
podman stop --time 60 kedgefs-try-mount
test "$(podman wait kedgefs-try-mount)" = 0
if mountpoint -q "$place/mnt"; then exit 1; fi
podman rm kedgefs-try-mount
"${run[@]}" --rm "$image" fsck -f /srv/disk.kedge

# It serves NFS to the containers of its network, without the rights of a mount.
podman_run=("${podman[@]}")
for word in "${run[@]:1}"; do
    case $word in --device=* | --cap-add=*) ;; *) podman_run+=("$word") ;; esac
done
"${podman_run[@]}" --name kedgefs-try-serve --detach "$image" serve nfs --any-port /srv/disk.kedge
"${podman_run[@]/--network=none/--network=container:kedgefs-try-serve}" --rm "$client" sh -euxc "$script"
podman stop --time 60 kedgefs-try-serve
test "$(podman wait kedgefs-try-serve)" = 0
test "$("${run[@]}" --rm "$image" cat /srv/disk.kedge:/note)" = kept
