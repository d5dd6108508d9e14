// Package filter turns seccomp profiles into the bytes that the kernel loads. Only libcontainer knows
// what these are: it has libseccomp compile the profile, and then adds instructions of its own. So a
// helper process lets libcontainer load the profile, and catches the system call that would do it:
// see Capture. That takes about 15 ms, once for each profile.
package filter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/supervisor/ownstart/codec"
	"github.com/berthrun/berth/internal/supervisor/ownstart/finish"
)

const (
	// maxProfiles bounds the profiles that a Cache keeps, each about 10 KiB.
	maxProfiles = 64
	// captureTimeout bounds the helper.
	captureTimeout = 10 * time.Second
	// allowedFlags are those that the last steps of a process can give to the kernel.
	allowedFlags = unix.SECCOMP_FILTER_FLAG_LOG | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
)

// Cache has the filters of the profiles that were needed last. The zero value is ready.
type Cache struct {
	mu sync.Mutex
	// profiles is ordered by the last use, newest last.
	profiles []*profile
}

// profile is a profile, whose filter is known or being captured.
type profile struct {
	key [sha256.Size]byte
	// done is closed when filter and err are set.
	done   chan struct{}
	filter *finish.Filter
	err    error
}

// Get returns the filter of a profile, nil for none. Kind Unsupported when only libcontainer can use
// the profile, or refuses it; then every later call returns the same.
func (c *Cache) Get(ctx context.Context, seccomp *configs.Seccomp) (*finish.Filter, error) {
	if seccomp == nil {
		return nil, nil
	}
	encoded, err := json.Marshal(seccomp)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a seccomp profile: %w", err)
	}
	for {
		p, mine := c.claim(sha256.Sum256(encoded))
		if mine {
			p.filter, p.err = capture(ctx, seccomp, encoded)
			if p.err != nil && !errors.Is(p.err, errs.Unsupported) {
				c.forget(p)
			}
			close(p.done)
			return p.filter, p.err
		}
		select {
		case <-p.done:
		default:
			select {
			case <-p.done:
			case <-ctx.Done():
				return nil, fmt.Errorf("cannot wait for a seccomp filter: %w", ctx.Err())
			}
		}
		if p.err == nil || errors.Is(p.err, errs.Unsupported) {
			return p.filter, p.err
		}
		// The caller that captured it gave up, or the host was short of something.
	}
}

// claim returns the profile of a key. mine is true for a new one, which the caller captures.
func (c *Cache) claim(key [sha256.Size]byte) (p *profile, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.profiles, func(p *profile) bool { return p.key == key })
	if at >= 0 {
		p = c.profiles[at]
		c.profiles = append(slices.Delete(c.profiles, at, at+1), p)
		return p, false
	}
	if len(c.profiles) >= maxProfiles {
		c.profiles = slices.Delete(c.profiles, 0, 1)
	}
	p = &profile{key: key, done: make(chan struct{})}
	c.profiles = append(c.profiles, p)
	return p, true
}

func (c *Cache) forget(p *profile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.profiles = slices.DeleteFunc(c.profiles, func(other *profile) bool { return other == p })
}

// capture runs the helper.
func capture(ctx context.Context, seccomp *configs.Seccomp, encoded []byte) (*finish.Filter, error) {
	notify := func(call *configs.Syscall) bool { return call != nil && call.Action == configs.Notify }
	if seccomp.ListenerPath != "" || slices.ContainsFunc(seccomp.Syscalls, notify) {
		return nil, fmt.Errorf("seccomp profile with a listener: %w", errs.Unsupported)
	}
	ctx, stop := context.WithTimeout(ctx, captureTimeout)
	defer stop()
	var out, complaints bytes.Buffer
	// The link leads to the program of this process, also after an upgrade has replaced its file.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Role)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(encoded), &out, &complaints
	cmd.Env = []string{"GOGC=off"}
	if err := cmd.Run(); err != nil {
		// It was killed, or the host had no room for it: another attempt may succeed.
		err = errors.Join(errs.OfFork(err), ctx.Err(), errs.Unavailable)
		return nil, fmt.Errorf("cannot compile a seccomp profile: %w: %s", err, complaints.Bytes())
	}
	r := codec.NewReader(out.Bytes())
	refused, flags, program := r.String(), r.Uint(), r.Bytes()
	switch {
	case r.Err() != nil:
		return nil, fmt.Errorf("cannot compile a seccomp profile: %w", r.Err())
	case refused != "":
		return nil, fmt.Errorf("seccomp profile: %s: %w", refused, errs.Unsupported)
	case flags&^allowedFlags != 0:
		return nil, fmt.Errorf("seccomp profile with flags %#x: %w", flags, errs.Unsupported)
	}
	return &finish.Filter{Program: program, Flags: uint(flags)}, nil
}
