# files.tcl TEST: SQLite's tests ask Tcl whether a database is there, how long it is, and remove it.
# This lets Tcl's `file` do that in the image of the VFS kedgefs, then runs the test.
rename file host_file

proc in_image {function name} {
  # The tests put a command of their own in the place of `sqlite3`.
  set open [expr {[info commands sqlite_orig] eq "" ? "sqlite3" : "sqlite_orig"}]
  $open in_image_db :memory: -vfs unix
  in_image_db enable_load_extension 1
  in_image_db eval {select load_extension($::env(FILES))}
  set found [in_image_db onecolumn "select ${function}_in(\$name)"]
  in_image_db close
  return $found
}

proc file {what args} {
  switch -- $what {
    exists {
      if {[in_image exists [lindex $args 0]]} { return 1 }
    }
    size {
      set size [in_image size [lindex $args 0]]
      if {$size >= 0} { return $size }
    }
    delete {
      foreach name $args {
        if {![string match -* $name] && [in_image exists $name]} { in_image delete $name }
      }
    }
  }
  uplevel 1 [list host_file $what {*}$args]
}

set argv0 [lindex $argv 0]
set argv [lrange $argv 1 end]
source $argv0
