// Uses the library from Go without cgo: main LIBRARY IMAGE. Every call goes through the foreign
// function interface of purego, from many goroutines, which move between threads.
package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

const (
	read   = 1
	write  = 2
	create = 4
)

var (
	kedgefsCreate    func(image string, size uint64, options string) int32
	kedgefsOpen      func(image string, options string, fs *uintptr) int32
	kedgefsClose     func(fs uintptr) int32
	kedgefsMkdir     func(fs uintptr, path string, mode uint32) int32
	kedgefsFileOpen  func(fs uintptr, path string, flags uint32, mode uint32, file *uintptr) int32
	kedgefsFileClose func(file uintptr) int32
	kedgefsPread     func(file uintptr, buf unsafe.Pointer, len uintptr, offset int64) int64
	kedgefsPwrite    func(file uintptr, buf unsafe.Pointer, len uintptr, offset int64) int64
	kedgefsFsync     func(file uintptr) int32
)

// check fails unless the result is the wanted one.
func check(what string, got, wanted int64) {
	if got == wanted {
		return
	}
	text := ""
	if got < 0 {
		text = syscall.Errno(-got).Error()
	}
	fmt.Fprintf(os.Stderr, "%s: %d, not %d: %s\n", what, got, wanted, text)
	os.Exit(1)
}

func save(fs uintptr, n int) {
	path, text := fmt.Sprintf("notes/%d", n), []byte(fmt.Sprintf("note %d", n))
	var file uintptr
	check("open", int64(kedgefsFileOpen(fs, path, read|write|create, 0o644, &file)), 0)
	check("pwrite", kedgefsPwrite(file, unsafe.Pointer(&text[0]), uintptr(len(text)), 0), int64(len(text)))
	check("fsync", int64(kedgefsFsync(file)), 0)
	buf := make([]byte, 64)
	check("pread", kedgefsPread(file, unsafe.Pointer(&buf[0]), uintptr(len(buf)), 0), int64(len(text)))
	if string(buf[:len(text)]) != string(text) {
		check("the text", 0, 1)
	}
	check("close", int64(kedgefsFileClose(file)), 0)
	check("use after close", int64(kedgefsFsync(file)), -int64(syscall.EBADF))
}

func main() {
	library, err := purego.Dlopen(os.Args[1], purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		panic(errors.Join(errors.New("load the library"), err))
	}
	for name, function := range map[string]any{
		"kedgefs_create":     &kedgefsCreate,
		"kedgefs_open":       &kedgefsOpen,
		"kedgefs_close":      &kedgefsClose,
		"kedgefs_mkdir":      &kedgefsMkdir,
		"kedgefs_file_open":  &kedgefsFileOpen,
		"kedgefs_file_close": &kedgefsFileClose,
		"kedgefs_pread":      &kedgefsPread,
		"kedgefs_pwrite":     &kedgefsPwrite,
		"kedgefs_fsync":      &kedgefsFsync,
	} {
		purego.RegisterLibFunc(function, library, name)
	}
	var fs uintptr
	check("create", int64(kedgefsCreate(os.Args[2], 64<<20, "label=go")), 0)
	check("create again", int64(kedgefsCreate(os.Args[2], 64<<20, "")), -int64(syscall.EEXIST))
	check("open", int64(kedgefsOpen(os.Args[2], "", &fs)), 0)
	check("mkdir", int64(kedgefsMkdir(fs, "notes", 0o755)), 0)
	var all sync.WaitGroup
	for n := range 64 {
		all.Add(1)
		go func() {
			defer all.Done()
			save(fs, n)
		}()
	}
	all.Wait()
	check("close", int64(kedgefsClose(fs)), 0)
	check("close again", int64(kedgefsClose(fs)), -int64(syscall.EBADF))
	fmt.Println("saved 64 notes")
}
