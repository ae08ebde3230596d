# In a clean system: /given has the program that cargo installed.
cp /given/kedge /usr/local/bin
cd /root
kedge mount --create 64M disk.kedge mnt
echo kept > mnt/a
kedge umount mnt
test "$(kedge cat disk.kedge:/a)" = kept
