# A mailbox that is to be copied, and an empty one.
set -e
for box in new cur tmp; do mkdir -p "$PROGRAM_TEMP/far/$box" "$PROGRAM_FROM/near/$box"; done
for n in 1 2 3; do
    { printf 'From: a@example.org\nSubject: %s\n\n' $n; head -c 9000 /dev/zero | tr '\0' $n; echo; } > "$PROGRAM_TEMP/far/new/170000000$n.$n.zoo"
done
