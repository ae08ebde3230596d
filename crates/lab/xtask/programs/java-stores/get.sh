# The packages of Maven that the rows use, and the program that uses them.
set -e
if ! cmp -s pom.xml lib/pom.xml; then
    rm -rf lib
    mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib > get.log 2>&1 || { tail -5 get.log >&2; exit 1; }
    cp pom.xml lib/
fi
javac -nowarn -cp 'lib/*' -d classes Stores.java
printf '#!/bin/sh\nexec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dzookeeper.preAllocSize=64 -Dderby.stream.error.file=/dev/null -cp "%s/classes:%s/lib/*" Stores "$@"\n' "$PWD" "$PWD" > "$BIN/java-stores"
chmod 755 "$BIN/java-stores"
