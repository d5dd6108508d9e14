package keep

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// inheritEnv names the descriptor of the table that a supervisor leaves to the
// keeper that it becomes.
const inheritEnv = "BERTH_KEEPER_INHERIT"

// inheritance is what the execve of TakeOver has passed on.
type inheritance struct {
	lock   *os.File
	binary string
	notify string
	held   map[string][]int
}

// TakeOver turns this supervisor, whose keeper is gone, into the keeper: it executes the
// running program with the keeper's command line. The pid and the children stay. Threads,
// memory and all descriptors except those of held are gone. The new process image starts a
// supervisor, which adopts the containers as after a crash.
//
// The caller has waited for Lost, has stopped creates and execs (a fork from here on would
// inherit the held descriptors) and has written the state that only its memory has. held is
// everything that the keeper held. TakeOver does not return when it succeeds. Kind State when
// another process has become the keeper, or the old one runs and has closed the connection.
// When TakeOver returns, the caller exits with a status other than 0. Its containers continue
// without a parent.
func (c *Client) TakeOver(held []Held) error {
	<-c.lost
	lock := c.takeLock()
	c.mu.Lock()
	cause, from := c.err, c.from
	c.mu.Unlock()
	if lock == nil {
		return fmt.Errorf("cannot take the keeper's place: %w: %w", errs.State, cause)
	}
	return becomeKeeper(from, lock.File(), held)
}

// becomeKeeper executes the running program: what is on disk may be another one,
// which was never tested. It blocks every fork of this process, which would inherit what
// is passed on.
func becomeKeeper(from hello, lock *os.File, held []Held) error {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	defer runtime.KeepAlive(held)
	table, err := sysfd.NewMemfd("keeper-inheritance")
	if err != nil {
		return err
	}
	defer table.Close()
	tableFD, err := passOn(table)
	if err != nil {
		return err
	}
	env := append(cleanEnvironment(), inheritEnv+"="+strconv.Itoa(tableFD))
	err = writeTable(table, lock, from, held)
	if err == nil {
		err = syscall.Exec("/proc/self/exe", from.args, env)
	}
	return errors.Join(fmt.Errorf("cannot become the keeper: %w", err), sysfd.CloseOnExecFrom(firstListenFD))
}

// writeTable writes the inheritance and clears close-on-exec of its descriptors. The table has
// the lock's descriptor, the two texts, then "key fd fd ..." for each key. It omits a key with
// a file that its owner has just closed.
func writeTable(table, lock *os.File, from hello, held []Held) error {
	lockFD, err := passOn(lock)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n%q\n%q\n", lockFD, from.binary, from.notify)
	for _, h := range held {
		if err := checkKey(h.Key); err != nil {
			return err
		}
		line, err := tableLine(h)
		if errors.Is(err, os.ErrClosed) {
			continue
		}
		if err != nil {
			return err
		}
		b.WriteString(line)
	}
	if _, err := table.WriteString(b.String()); err != nil {
		return fmt.Errorf("cannot write the keeper's inheritance: %w", err)
	}
	if _, err := table.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("cannot write the keeper's inheritance: %w", err)
	}
	return nil
}

func tableLine(h Held) (string, error) {
	line := h.Key
	for _, f := range h.Files {
		fd, err := passOn(f)
		if err != nil {
			return "", err
		}
		line += " " + strconv.Itoa(fd)
	}
	return line + "\n", nil
}

// passOn clears close-on-exec of f and returns its descriptor.
func passOn(f *os.File) (int, error) {
	fd, err := sysfd.FileFD(f)
	if err != nil {
		return -1, err
	}
	return fd, sysfd.SetCloseOnExec(fd, false)
}

// readInheritance reads the table that TakeOver wrote. It returns nil in a process that did not
// come from TakeOver. It sets close-on-exec of all descriptors again.
func readInheritance() (*inheritance, error) {
	text, found := os.LookupEnv(inheritEnv)
	if !found {
		return nil, nil
	}
	if err := os.Unsetenv(inheritEnv); err != nil {
		return nil, fmt.Errorf("cannot read the keeper's inheritance: %w", err)
	}
	fd, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", inheritEnv, text, errs.Invalid)
	}
	table := os.NewFile(uintptr(fd), "keeper-inheritance")
	defer table.Close()
	got, err := parseTable(table)
	if err != nil {
		return nil, fmt.Errorf("cannot read the keeper's inheritance: %w", err)
	}
	return got, nil
}

func parseTable(r io.Reader) (*inheritance, error) {
	got := &inheritance{held: map[string][]int{}}
	lines := bufio.NewReader(r)
	var lockFD int
	if _, err := fmt.Fscanf(lines, "%d\n%q\n%q\n", &lockFD, &got.binary, &got.notify); err != nil {
		return nil, err
	}
	got.lock = os.NewFile(uintptr(lockFD), LockName)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return nil, err
		}
		key, fds, err := parseLine(line)
		if err != nil {
			return nil, err
		}
		if len(fds) > 0 {
			got.held[key] = fds
		}
	}
}

// parseLine reads "key fd fd ...". A descriptor that was closed at the last moment
// is not there: its key then comes with none.
func parseLine(line string) (key string, fds []int, err error) {
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return "", nil, fmt.Errorf("empty line: %w", errs.Invalid)
	}
	whole := true
	for _, field := range fields[1:] {
		fd, err := strconv.Atoi(field)
		if err != nil {
			return "", nil, err
		}
		if sysfd.SetCloseOnExec(fd, true) != nil {
			whole = false
			continue
		}
		fds = append(fds, fd)
	}
	if !whole {
		sysfd.CloseFDs(fds)
		return fields[0], nil, nil
	}
	return fields[0], fds, nil
}

// commandLine is this process's own, for a supervisor that becomes the keeper.
func commandLine() []string { return slices.Clone(os.Args) }
