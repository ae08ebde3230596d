// Uses the library from Java: Main LIBRARY IMAGE. Every call goes through JNA, from many threads.
import com.sun.jna.Library;
import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.PointerByReference;
import java.nio.charset.StandardCharsets;
import java.util.stream.IntStream;

public class Main {
    static final int READ = 1, WRITE = 2, CREATE = 4;
    static final int EBADF = 9, EEXIST = 17;

    /** The functions of kedgefs.h that the program calls. A handle is a number that is not followed. */
    public interface Kedgefs extends Library {
        int kedgefs_create(String image, long size, String options);
        int kedgefs_open(String image, String options, PointerByReference fs);
        int kedgefs_close(Pointer fs);
        int kedgefs_mkdir(Pointer fs, String path, int mode);
        int kedgefs_file_open(Pointer fs, String path, int flags, int mode, PointerByReference file);
        int kedgefs_file_close(Pointer file);
        long kedgefs_pread(Pointer file, Pointer buf, long len, long offset);
        long kedgefs_pwrite(Pointer file, byte[] buf, long len, long offset);
        int kedgefs_fsync(Pointer file);
        String kedgefs_error();
    }

    /** Throws unless the result is the wanted one. */
    static void check(String what, long got, long wanted) {
        if (got != wanted) {
            throw new IllegalStateException(what + ": " + got + ", not " + wanted);
        }
    }

    static void save(Kedgefs library, Pointer fs, int n) {
        byte[] text = ("note " + n).getBytes(StandardCharsets.UTF_8);
        PointerByReference place = new PointerByReference();
        check("open", library.kedgefs_file_open(fs, "notes/" + n, READ | WRITE | CREATE, 0644, place), 0);
        Pointer file = place.getValue();
        check("pwrite", library.kedgefs_pwrite(file, text, text.length, 0), text.length);
        check("fsync", library.kedgefs_fsync(file), 0);
        Memory buf = new Memory(64);
        check("pread", library.kedgefs_pread(file, buf, buf.size(), 0), text.length);
        String found = new String(buf.getByteArray(0, text.length), StandardCharsets.UTF_8);
        if (!found.equals("note " + n)) {
            throw new IllegalStateException("the text is " + found);
        }
        check("close", library.kedgefs_file_close(file), 0);
        check("use after close", library.kedgefs_fsync(file), -EBADF);
    }

    public static void main(String[] args) {
        Kedgefs library = Native.load(args[0], Kedgefs.class);
        String image = args[1];
        PointerByReference place = new PointerByReference();
        check("create", library.kedgefs_create(image, 64L << 20, "label=java"), 0);
        check("create again", library.kedgefs_create(image, 64L << 20, null), -EEXIST);
        if (!library.kedgefs_error().contains(image)) {
            throw new IllegalStateException("the error is " + library.kedgefs_error());
        }
        check("open", library.kedgefs_open(image, null, place), 0);
        Pointer fs = place.getValue();
        check("mkdir", library.kedgefs_mkdir(fs, "notes", 0755), 0);
        IntStream.range(0, 64).parallel().forEach(n -> save(library, fs, n));
        check("close", library.kedgefs_close(fs), 0);
        check("close again", library.kedgefs_close(fs), -EBADF);
        System.out.println("saved 64 notes");
    }
}
