# The store opens, and what it has is whole. If Go itself stops, it prints the reason first and then
# the stacks of all threads.
said=$(go-badger check 2>&1) && exit 0
echo "$said" | head -3
exit 1
