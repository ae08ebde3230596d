# A file is visited, changed and saved, with a backup, as in interactive use; below /tmp Emacs makes none
# by itself. The promise is Emacs' exit.
cd "$KEDGE_DIR"
HOME="$PROGRAM_TEMP" emacs --batch --quick --eval '(progn
    (setq write-region-inhibit-fsync nil make-backup-files t backup-enable-predicate (lambda (name) t))
    (find-file "notes") (erase-buffer) (insert (make-string 9000 ?n)) (save-buffer))' > /dev/null 2>&1 &&
    echo "ack saved"
