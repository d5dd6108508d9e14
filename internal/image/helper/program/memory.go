package program

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// inMemory is a program that is copied into a sealed file in memory while it is in use.
type inMemory struct {
	content []byte
	// copied is called after each copy.
	copied func()
	// otherwise is the program where the kernel executes no file in memory (the sysctl vm.memfd_noexec).
	otherwise Program

	mu    sync.Mutex // guards what follows
	users int
	file  *os.File // the copy; nil before the first Use, and after the last release
}

func newInMemory(content []byte, copied func(), otherwise Program) *inMemory {
	return &inMemory{content: content, copied: copied, otherwise: otherwise}
}

// Hold implements Program.
func (p *inMemory) Hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	return sync.OnceFunc(p.release)
}

// Use implements Program.
func (p *inMemory) Use() (path string, args []string, release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		if p.file, err = seal(p.content); errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS) {
			return p.otherwise.Use()
		}
		if err != nil {
			return "", nil, nil, err
		}
		p.copied()
	}
	p.users++
	return fmt.Sprint("/proc/self/fd/", p.file.Fd()), []string{Name}, sync.OnceFunc(p.release), nil
}

func (p *inMemory) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 && p.file != nil {
		p.file.Close()
		p.file = nil
	}
}

// seal copies a program into a file in memory that nobody can change. The error is EACCES if the kernel would not execute
// it.
func seal(content []byte) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(Name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3, which executes all files in memory
		fd, err = unix.MemfdCreate(Name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a file in memory for the unpack helper: %w", err)
	}
	written := os.NewFile(uintptr(fd), Name)
	defer written.Close() // what is open for writing cannot be executed
	if _, err := written.Write(content); err != nil {
		return nil, fmt.Errorf("cannot copy the unpack helper into memory: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return nil, fmt.Errorf("cannot seal the copy of the unpack helper: %w", err)
	}
	file, err := os.Open(fmt.Sprint("/proc/self/fd/", fd))
	if err != nil {
		return nil, fmt.Errorf("cannot open the copy of the unpack helper: %w", err)
	}
	return file, nil
}
