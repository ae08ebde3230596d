# In a clean system with a C compiler and sqlite3: /given has the packages, and the program of
# docs/C.md.
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
