// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package trusted

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// must is for what a test needs and does not test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes a file, with the folders on the way.
func write(t *testing.T, path, content string) string {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// create makes a file in a folder that is made with it.
func create(path, content string, mode, folderMode fs.FileMode) error {
	if err := MakeFolder(filepath.Dir(path), folderMode); err != nil {
		return err
	}
	return Replace(path, []byte(content), mode)
}

// functions are all that open a path; each gets the path of a file.
var functions = map[string]func(path string) error{
	"folder":  func(path string) error { return Folder(filepath.Dir(path)) },
	"program": Program,
	"read":    func(path string) error { _, err := Read(path); return err },
	"append": func(path string) error {
		f, err := Append(path)
		if err == nil {
			err = f.Close()
		}
		return err
	},
	"replace": func(path string) error { return create(path, "new", 0o600, 0o700) },
}

func TestFilesOfRootAreOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "folder", "file"), "old")
	must(t, os.Symlink("folder", filepath.Join(dir, "link")))
	must(t, os.Symlink(filepath.Join(dir, "link"), filepath.Join(dir, "link2")))
	for _, folder := range []string{"folder", "link", "link2", "folder/../link"} {
		b, err := Read(filepath.Join(dir, folder, "file"))
		if err != nil || string(b) != "old" {
			t.Errorf("%s: %q, %v", folder, b, err)
		}
		must(t, Folder(filepath.Join(dir, folder)))
	}
	write(t, filepath.Join(dir, "folder", "below", "file"), "below")
	if b, err := Read(filepath.Join(dir, "link2", "below", "file")); err != nil || string(b) != "below" {
		t.Errorf("below a link: %q, %v", b, err)
	}
	f, err := Append(path)
	must(t, err)
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 || err != nil {
		t.Errorf("a program that is started would have the file: %v", err)
	}
	_, err = f.WriteString(" and new")
	must(t, errors.Join(err, f.Close()))
	if b, err := Read(path); string(b) != "old and new" {
		t.Errorf("after Append: %q, %v", b, err)
	}
	must(t, Replace(path, []byte("newer"), 0o640))
	if b, err := Read(path); string(b) != "newer" {
		t.Errorf("after Replace: %q, %v", b, err)
	}
}

func TestFoldersAreMadeForWhatIsWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, Folder(filepath.Join(dir, "not", "there")))
	for _, function := range []string{"read", "program"} {
		for _, path := range []string{"not", "not/there"} {
			if err := functions[function](filepath.Join(dir, path)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s of nothing: %v", function, err)
			}
		}
	}
	must(t, create(filepath.Join(dir, "a", "b", "file"), "", 0o600, 0o750))
	f, err := Append(filepath.Join(dir, "c", "d", "file"))
	must(t, errors.Join(err, f.Close()))
	for path, want := range map[string]fs.FileMode{"not": 0, "a": 0o750, "a/b": 0o750, "a/b/file": 0o600, "c": 0o700, "c/d": 0o700, "c/d/file": 0o600} {
		info, err := os.Lstat(filepath.Join(dir, path))
		if want == 0 && !errors.Is(err, fs.ErrNotExist) || want != 0 && (err != nil || info.Mode().Perm() != want) {
			t.Errorf("%s: %v, %v, want mode %o", path, info, err, want)
		}
	}
}

// Calls of a node that has just started make its folders at the same time.
func TestFoldersAreMadeAtTheSameTime(t *testing.T) {
	t.Parallel()
	const calls = 4
	for i := range 50 {
		path, errs := filepath.Join(t.TempDir(), "a", "b", "c"), make(chan error)
		for range calls {
			go func() { errs <- MakeFolder(path, 0o700) }()
		}
		for range calls {
			if err := <-errs; err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
	}
}

func TestFoldersThatOthersCanChangeAreRefused(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, dir string) (path string){
		"the folder is everybody's": func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777))
			return write(t, filepath.Join(dir, "file"), "")
		},
		"the folder is everybody's, and sticky": func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777|fs.ModeSticky))
			return write(t, filepath.Join(dir, "file"), "")
		},
		"the folder is a group's": func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o770))
			return write(t, filepath.Join(dir, "file"), "")
		},
		"a folder on the way is everybody's": func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777))
			return write(t, filepath.Join(dir, "below", "file"), "")
		},
		"a link on the way in a sticky folder": func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777|fs.ModeSticky))
			write(t, filepath.Join(dir, "below", "file"), "")
			must(t, os.Symlink("below", filepath.Join(dir, "link")))
			return filepath.Join(dir, "link", "file")
		},
		"a link on the way in a folder of a group": func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o770))
			write(t, filepath.Join(dir, "below", "file"), "")
			must(t, os.Symlink("below", filepath.Join(dir, "link")))
			return filepath.Join(dir, "link", "file")
		},
		"a folder of another user on the way": func(t *testing.T, dir string) string {
			path := write(t, filepath.Join(dir, "below", "file"), "")
			if os.Geteuid() != 0 {
				t.Skip("only root gives folders away")
			}
			must(t, os.Chown(filepath.Dir(path), 1234, -1))
			return path
		},
		"a link of another user on the way": func(t *testing.T, dir string) string {
			write(t, filepath.Join(dir, "below", "file"), "")
			must(t, os.Symlink("below", filepath.Join(dir, "link")))
			if os.Geteuid() != 0 {
				t.Skip("only root gives links away")
			}
			must(t, os.Lchown(filepath.Join(dir, "link"), 1234, -1))
			return filepath.Join(dir, "link", "file")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := prepare(t, t.TempDir())
			for name, open := range functions {
				if err := open(path); !errors.Is(err, ErrOthers) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

func TestSharedFoldersArePassed(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]fs.FileMode{"as /tmp": 0o777 | fs.ModeSticky, "as /var/log": 0o775} {
		dir := t.TempDir()
		must(t, os.Chmod(dir, mode))
		path := write(t, filepath.Join(dir, "roce", "file"), "")
		for function, open := range functions {
			if err := open(path); err != nil {
				t.Errorf("%s, %s: %v", name, function, err)
			}
		}
	}
}

func TestAFolderThatOthersCanMakeIsRefused(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]fs.FileMode{"as /tmp": 0o777 | fs.ModeSticky, "as /var/log": 0o775} {
		dir := t.TempDir()
		must(t, os.Chmod(dir, mode))
		if err := Folder(filepath.Join(dir, "not", "there")); !errors.Is(err, ErrOthers) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, create(filepath.Join(dir, "made", "file"), "", 0o600, 0o700))
	}
}

func TestOnlyRegularFilesOfRootAreOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	legit := write(t, filepath.Join(dir, "legit"), "legit")
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Symlink(legit, at("link")))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	must(t, os.Mkdir(at("folder"), 0o700))
	write(t, at("folder/in it"), "")
	write(t, at("everybody's"), "")
	must(t, os.Chmod(at("everybody's"), 0o666))
	write(t, at("a group's"), "")
	must(t, os.Chmod(at("a group's"), 0o660))
	bad := map[string]error{"link": ErrIrregular, "fifo": ErrIrregular, "folder": unix.EISDIR, "everybody's": ErrOthers, "a group's": ErrOthers}
	if os.Geteuid() == 0 {
		must(t, os.Chown(write(t, at("another user's"), ""), 1234, -1))
		bad["another user's"] = ErrOthers
	}
	for name, want := range bad {
		for _, function := range []string{"read", "append", "program"} {
			if err := functions[function](at(name)); !errors.Is(err, want) {
				t.Errorf("%s of %s: %v", function, name, err)
			}
		}
	}
	if err := functions["read"]("/dev/zero"); !errors.Is(err, ErrIrregular) && !errors.Is(err, ErrOthers) {
		t.Errorf("read of /dev/zero: %v", err)
	}
	for _, name := range []string{"link", "fifo", "everybody's", "a group's"} { // what is in the way goes
		must(t, functions["replace"](at(name)))
	}
	if err := functions["replace"](at("folder")); err == nil {
		t.Error("replacement of a folder with something in it: no error")
	}
	if b, err := os.ReadFile(legit); err != nil || string(b) != "legit" {
		t.Errorf("behind the link: %q, %v", b, err)
	}
}

// inside are the functions that read a file.
var inside = map[string]func(path string) ([]byte, error){
	"Read": Read, "ReadInside": ReadInside,
	"ReadBelow": func(path string) ([]byte, error) { return ReadBelow(filepath.Split(path)) },
}

func TestLongFilesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for size, want := range map[int]error{0: nil, usual: nil, MaxSize: nil, MaxSize + 1: ErrTooLong} {
		path := write(t, filepath.Join(dir, "file"), string(bytes.Repeat([]byte("x"), size)))
		for name, read := range inside {
			if b, err := read(path); !errors.Is(err, want) || err == nil && len(b) != size {
				t.Errorf("%s, %d bytes: %d, %v", name, size, len(b), err)
			}
		}
	}
}

func TestFilesOfACheckedFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	legit := write(t, filepath.Join(dir, "legit"), "legit")
	link, fifo, open, socket := filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "open"), filepath.Join(dir, "socket")
	must(t, os.Symlink(legit, link))
	must(t, errors.Join(unix.Mkfifo(fifo, 0o600), unix.Mkfifo(open, 0o600), unix.Mknod(socket, unix.S_IFSOCK|0o600, 0)))
	writer, err := os.OpenFile(open, os.O_RDWR, 0)
	must(t, err)
	defer writer.Close()
	for name, read := range map[string]func(string) ([]byte, error){"ReadInside": ReadInside, "ReadBelow": inside["ReadBelow"]} {
		for _, path := range []string{link, fifo, open, socket, "/dev/zero"} {
			if _, err := read(path); !errors.Is(err, ErrIrregular) {
				t.Errorf("%s(%s): %v", name, path, err)
			}
		}
		if b, err := read(legit); err != nil || string(b) != "legit" {
			t.Errorf("%s behind the link: %q, %v", name, b, err)
		}
		if _, err := read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of nothing: %v", name, err)
		}
	}
	for _, path := range []string{link, fifo} {
		must(t, Replace(path, []byte("new"), 0o600))
		if b, err := ReadInside(path); err != nil || string(b) != "new" {
			t.Errorf("after Replace(%s): %q, %v", path, b, err)
		}
	}
}

// TestFoldersBelowACheckedFolderAreNotLinks has what another program may put between.
func TestFoldersBelowACheckedFolderAreNotLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "folder", "file"), "content")
	must(t, os.Symlink("folder", filepath.Join(dir, "link")))
	for name, want := range map[string]error{"folder/file": nil, "link/file": ErrIrregular, "../../file": unix.EXDEV, "none/file": fs.ErrNotExist} {
		if b, err := ReadBelow(dir, name); !errors.Is(err, want) || err == nil && string(b) != "content" {
			t.Errorf("%s: %q, %v, want %v", name, b, err, want)
		}
	}
	if _, err := ReadBelow(filepath.Join(dir, "none"), "file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("below no folder: %v", err)
	}
}

func TestAnUnusableFolderIsReportedWithTheErrorOfTheKernel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "file"), "")
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	for path, want := range map[string]error{
		file:                         unix.ENOTDIR,
		filepath.Join(file, "below"): unix.ENOTDIR,
		filepath.Join(dir, strings.Repeat("x", 256)): unix.ENAMETOOLONG,
		filepath.Join(dir, "loop"):                   unix.ELOOP,
		"run/roce":                                   unix.EINVAL,
	} {
		if err := Folder(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}

func TestErrorsNameThePathAndWhatWasDone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	none := filepath.Join(dir, "none")
	long := write(t, filepath.Join(dir, "long"), strings.Repeat("x", MaxSize+1))
	_, read := Read(none)
	_, tooLong := Read(long)
	_, appended := Append(filepath.Join(long, "file"))
	_, inside := ReadInside(none)
	_, folder := ReadInside(dir)
	_, below := ReadBelow(dir, "none")
	_, belowNone := ReadBelow(none, "file")
	_, fresh := Fresh(filepath.Join(none, "file"), 0o600)
	for what, c := range map[string]struct {
		err      error
		op, path string
		is       error
	}{
		"Read": {read, "open", none, fs.ErrNotExist}, "Read of a long file": {tooLong, "read", long, ErrTooLong},
		"Append": {appended, "open", filepath.Join(long, "file"), unix.ENOTDIR}, "ReadInside": {inside, "read", none, fs.ErrNotExist},
		"ReadInside of a folder": {folder, "read", dir, unix.EISDIR}, "ReadBelow": {below, "read", none, fs.ErrNotExist},
		"ReadBelow of no folder": {belowNone, "open", none, fs.ErrNotExist},
		"Replace":                {Replace(filepath.Join(none, "file"), nil, 0o600), "create", filepath.Join(none, "file") + mark, fs.ErrNotExist},
		"Fresh":                  {fresh, "create", filepath.Join(none, "file") + mark, fs.ErrNotExist},
		"MakeFolder":             {MakeFolder(filepath.Join(long, "x"), 0o700), "create", filepath.Join(long, "x"), unix.ENOTDIR},
	} {
		var p *fs.PathError
		if !errors.As(c.err, &p) || p.Op != c.op || !strings.HasPrefix(p.Path, c.path) || !errors.Is(c.err, c.is) {
			t.Errorf("%s: got %v, want %s %s: %v", what, c.err, c.op, c.path, c.is)
		}
	}
}

// No other test runs at the same time, so that the number of open files is this one's.
func TestNothingStaysOpen(t *testing.T) { //nolint:paralleltest // see above
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	file := write(t, filepath.Join(dir, "in", "file"), "x")
	must(t, os.Symlink("in", filepath.Join(dir, "link")))
	must(t, os.Symlink("file", filepath.Join(dir, "in", "toFile")))
	must(t, os.Symlink("/none/whatever", filepath.Join(dir, "broken")))
	write(t, filepath.Join(dir, "open", "file"), "x")
	must(t, os.Chmod(filepath.Join(dir, "open"), 0o777))
	long := write(t, filepath.Join(dir, "long"), strings.Repeat("x", MaxSize+1))
	all := func() {
		for _, path := range []string{
			file, filepath.Join(dir, "in", "none"), filepath.Join(dir, "in"), filepath.Join(dir, "link", "file"), filepath.Join(dir, "in", "toFile"),
			filepath.Join(dir, "broken", "file"), filepath.Join(dir, "open", "file"), filepath.Join(file, "below"), filepath.Join(dir, "none", "none"), long, "relative",
		} {
			for name, do := range functions {
				if name != "replace" && name != "append" || strings.HasPrefix(path, filepath.Join(dir, "open")) || strings.HasSuffix(path, "below") {
					_ = do(path)
				}
			}
			_, _ = ReadInside(path)
			_, _ = ReadBelow(dir, strings.TrimPrefix(path, dir+"/"))
			_, _ = ReadBelow(path, "file")
		}
		f, err := Append(file)
		must(t, errors.Join(err, f.Close()))
		must(t, errors.Join(create(file, "x", 0o600, 0o700), Sweep(file)))
		if err := Replace(dir, nil, 0o600); err == nil {
			t.Error("a folder was replaced")
		}
	}
	all()
	before := cnitest.OpenFiles(t)
	all()
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}
