package noderoutes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Read reads the routes of a file, none if there is no file. Faults of lines are kind Invalid; there are routes, too.
func Read(file string) ([]Line, error) {
	text, err := read(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, text)
}

// read returns the text of a file, none if there is no file. The error is kind Invalid if it is no regular file: reading a
// pipe would wait for ever.
func read(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		is := "not a regular file"
		if info.IsDir() {
			is = "a directory"
		}
		return nil, fmt.Errorf("cannot read the routes to other nodes: %s is %s; replace it by a file: %w", file, is, errs.Invalid)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(file)
	}
	if err := errs.IgnoreNotExist(err); err != nil {
		return nil, fmt.Errorf("cannot read the routes to other nodes: %w", err)
	}
	return text, nil
}

// Set writes a file with the routes of text, which is checked under the name from. The error is kind Invalid for faults of text.
func Set(ctx context.Context, file, from string, text []byte) error {
	if _, err := Parse(from, text); err != nil {
		return err
	}
	return change(ctx, file, func([]byte) ([]byte, error) { return text, nil })
}

// Add adds a route to a file, in place of the one to the same subnet. All other lines stay as they are. The error is
// kind Invalid if the file has faults.
func Add(ctx context.Context, file string, r Route) error {
	return edit(ctx, file, func(lines []string, at map[netip.Prefix]int) ([]string, error) {
		if i, found := at[r.To]; found {
			_, comment, commented := strings.Cut(lines[i], "#")
			lines[i] = r.String()
			if commented {
				lines[i] += " #" + comment
			}
			return lines, nil
		}
		return append(lines, r.String()), nil
	})
}

// Remove removes the routes to subnets from a file. All other lines stay as they are. The error is kind NotFound for a
// subnet without a route, and then nothing is removed; it is kind Invalid if the file has faults.
func Remove(ctx context.Context, file string, subnets []netip.Prefix) error {
	return edit(ctx, file, func(lines []string, at map[netip.Prefix]int) ([]string, error) {
		var gone []int
		for _, to := range subnets {
			i, found := at[to]
			if !found {
				return nil, fmt.Errorf("%s has no route to %s: %w", file, to, errs.NotFound)
			}
			gone = append(gone, i)
		}
		var kept []string
		for i, line := range lines {
			if !slices.Contains(gone, i) {
				kept = append(kept, line)
			}
		}
		return kept, nil
	})
}

// edit changes the lines of a file. at has the index of each subnet's line.
func edit(ctx context.Context, file string, fn func(lines []string, at map[netip.Prefix]int) ([]string, error)) error {
	return change(ctx, file, func(text []byte) ([]byte, error) {
		routes, err := Parse(file, text)
		if err != nil {
			return nil, fmt.Errorf("the file is not changed, because it has faults: %w", err)
		}
		at := map[netip.Prefix]int{}
		for _, r := range routes {
			at[r.To] = r.Number - 1
		}
		var lines []string
		for line := range strings.Lines(string(text)) {
			lines = append(lines, strings.TrimRight(line, "\r\n"))
		}
		if lines, err = fn(lines, at); err != nil || len(lines) == 0 {
			return nil, err
		}
		return []byte(strings.Join(lines, "\n") + "\n"), nil
	})
}

// change replaces the text of a file, or makes the file. Changes by several processes come one after the other.
func change(ctx context.Context, file string, fn func(text []byte) ([]byte, error)) error {
	// A link stays a link.
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	} else if to, linkErr := os.Readlink(file); linkErr == nil {
		return fmt.Errorf("cannot write the routes to other nodes: %s is a link to %s, which leads to no file; make that file or remove the link: %w: %w", file, to, err, errs.State)
	}
	dir := filepath.Dir(file)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		// A directory that was misspelt would get a file that no berth follows.
		return fmt.Errorf("cannot write the routes to other nodes to %s: the directory %s does not exist; make it, or name another file: %w", file, dir, errs.NotFound)
	}
	unlock, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
	}
	text, err := read(file)
	if err != nil {
		return err
	}
	next, err := fn(text)
	if err != nil {
		return err
	}
	if err := sysfile.ReplaceSynced(file, next); err != nil {
		return fmt.Errorf("cannot write the routes to other nodes: %w", err)
	}
	return os.Chmod(file, mode)
}

const (
	// lockTimeout is how long a change waits for another one, lockPause the time between two tries.
	lockTimeout = 10 * time.Second
	lockPause   = 20 * time.Millisecond
)

// lock keeps other changes of files in a directory away. Unlike a file beside it, the lock of the directory leaves nothing
// behind.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", dir, err), f.Close())
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("cannot lock %s: another process changes a file in it: %w", dir, errs.Unavailable), f.Close())
		}
	}
}
