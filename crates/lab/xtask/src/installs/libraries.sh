# In a clean system with a C compiler and sqlite3: /given has the packages, and the program of
# docs/C.md.
# The headers alone need the library, which apt names.
if apt-get install --yes /given/libkedgefs-dev.deb >why 2>&1; then exit 1; fi
grep "libkedgefs-dev : Depends: libkedgefs0" why
apt-get install --yes /given/libkedgefs0.deb /given/libkedgefs-dev.deb /given/kedgefs-sqlite.deb
cd /root
cc /given/save.c -o save $(pkg-config --cflags --libs kedgefs)
./save notes.kedge "buy milk"
./save notes.kedge "buy bread" | grep -qx "the last note: buy milk"
cc /given/save.c -o save-alone $(pkg-config --cflags kedgefs) \
    "$(pkg-config --variable=libdir kedgefs)/libkedgefs.a" $(pkg-config --variable=static_libs kedgefs)
./save-alone notes.kedge "buy tea" | grep -qx "the last note: buy bread"
sqlite3 > found <<'SQL'
.load libkedgefs_sqlite
.open file:notes.kedge:/app.db?vfs=kedgefs
create table letter (text);
insert into letter values ('kept');
select text from letter;
SQL
test "$(cat found)" = kept
# The program runs without what only builds need.
apt-get remove --yes libkedgefs-dev
./save notes.kedge "buy salt" | grep -qx "the last note: buy tea"
# Without the library it says what is missing.
apt-get remove --yes libkedgefs0
if ./save notes.kedge "buy ink" 2>why; then exit 1; fi
grep "libkedgefs.so.0: cannot open shared object file" why
