package keep

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
)

// Client is the supervisor's side. All methods are safe for concurrent use; they
// return kind Unavailable once the keeper is lost. Then, at any point of the supervisor's
// life, also during start-up, the supervisor calls TakeOver.
type Client struct {
	conn *net.UnixConn
	// keeper is the pid of the process at the other end.
	keeper int
	lost   chan struct{}

	mu      sync.Mutex
	from    hello
	seq     uint32
	waiting map[uint32]*call
	// err is why the keeper was lost; lock is the keeper's, when it was free then.
	err  error
	lock *sysfd.Lock
}

// call is a request under way, with its answers so far.
type call struct {
	answers []answer
	done    chan []answer
}

type answer struct {
	frame
	fds []int
}

// claimFor is how long the keeper's lock is kept for TakeOver.
const claimFor = 15 * time.Second

// Held is what the keeper holds under one key.
type Held struct {
	Key   string
	Files []*os.File
}

// Exit is an entry of the ledger.
type Exit struct {
	Status syscall.WaitStatus
	At     time.Time
}

// Attach connects a supervisor to the keeper that started it. Kind NotFound when
// none did. It must come before the first fork of the process: until then the
// socket would be inherited.
func Attach(ctx context.Context) (*Client, error) {
	text, found := os.LookupEnv(childSocketEnv)
	if !found {
		return nil, fmt.Errorf("keeper of this process: %w", errs.NotFound)
	}
	if err := os.Unsetenv(childSocketEnv); err != nil {
		return nil, fmt.Errorf("cannot attach to the keeper: %w", err)
	}
	fd, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", childSocketEnv, text, errs.Invalid)
	}
	if err := sysfd.SetCloseOnExec(fd, true); err != nil {
		return nil, err
	}
	conn, err := sysfd.FileUnixConn(os.NewFile(uintptr(fd), "keeper"))
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, keeper: os.Getppid(), lost: make(chan struct{}), waiting: map[uint32]*call{}}
	go c.read()
	answers, err := c.call(ctx, opHello, nil, nil)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	from, err := decodeHello(answers[0].payload)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.mu.Lock()
	c.from = from
	c.mu.Unlock()
	return c, nil
}

// Hold gives the keeper duplicates of files under key, in place of what the key
// held. When it returns nil they survive this process. Keys are printable ASCII
// without blank, ":" and "#"; "<container id>/<name>" lets one Release drop all of
// a container. The order of files is kept. Kind Exhausted when the keeper's
// descriptors run out.
func (c *Client) Hold(ctx context.Context, key string, files ...*os.File) error {
	_, err := c.call(ctx, opHold, []byte(key), files)
	return err
}

// Release makes the keeper close what it holds under key, or under every key that
// begins with it when it ends in "/". Nil when that is nothing.
func (c *Client) Release(ctx context.Context, key string) error {
	_, err := c.call(ctx, opRelease, []byte(key), nil)
	return err
}

// Held returns a duplicate of everything that the keeper holds, ordered by key.
// The caller closes the files.
func (c *Client) Held(ctx context.Context) ([]Held, error) {
	answers, err := c.call(ctx, opList, nil, nil)
	if err != nil {
		return nil, err
	}
	list := make([]Held, 0, len(answers)-1)
	for _, a := range answers[:len(answers)-1] {
		h := Held{Key: string(a.payload)}
		for _, fd := range a.fds {
			h.Files = append(h.Files, os.NewFile(uintptr(fd), h.Key))
		}
		list = append(list, h)
	}
	return list, nil
}

// Exit returns how a process that the keeper has adopted has ended; start is its
// sysproc.Proc.Start. Kind NotFound when it has not ended, or was never the keeper's
// child. For a process whose pidfd is readable one call is enough: the keeper looks for zombies
// before it answers.
func (c *Client) Exit(ctx context.Context, pid int, start uint64) (Exit, error) {
	answers, err := c.call(ctx, opLookup, identity{pid, start}.encode(), nil)
	if err != nil {
		return Exit{}, err
	}
	_, e, _, ok := decodeRecord(answers[0].payload)
	if !ok {
		return Exit{}, fmt.Errorf("cannot read the keeper's entry of process %d", pid)
	}
	return Exit{Status: e.status, At: e.at}, nil
}

// Forget removes an exit from the ledger, once it is recorded elsewhere.
func (c *Client) Forget(ctx context.Context, pid int, start uint64) error {
	_, err := c.call(ctx, opForget, identity{pid, start}.encode(), nil)
	return err
}

// Ready reports to the keeper (and through it to systemd) that this supervisor serves. One that
// ends before counts as failed: the restarts slow down.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.call(ctx, opReady, nil, nil)
	return err
}

// Upgrade has the keeper replace this supervisor by the binary on disk. It returns when the
// binary's self-test has ended: nil means that SIGTERM follows, an error (with what the self-test
// printed) means that this supervisor stays.
func (c *Client) Upgrade(ctx context.Context) error {
	_, err := c.call(ctx, opUpgrade, nil, nil)
	return err
}

// Lost is closed when the keeper is gone. The supervisor ends what is under way then, calls
// TakeOver, and exits with a status other than 0 when that returns. The keeper's place is
// reserved for 15 s; the next keeper kills a supervisor that takes longer.
func (c *Client) Lost() <-chan struct{} { return c.lost }

// call sends a request and waits for its last answer.
func (c *Client) call(ctx context.Context, op op, payload []byte, files []*os.File) ([]answer, error) {
	pending := &call{done: make(chan []answer, 1)}
	c.mu.Lock()
	c.seq++
	seq := c.seq
	c.waiting[seq] = pending
	c.mu.Unlock()
	if err := sysfd.SendFiles(c.conn, frame{op: op, seq: seq, payload: payload}.encode(), files); err != nil {
		c.cancel(seq, pending)
		return nil, fmt.Errorf("keeper: %w: %w", errs.Unavailable, err)
	}
	select {
	case answers := <-pending.done:
		return answers, answers[len(answers)-1].err()
	case <-ctx.Done():
		c.cancel(seq, pending)
		return nil, ctx.Err()
	case <-c.lost:
		c.cancel(seq, pending)
		return nil, fmt.Errorf("keeper: %w: %w", errs.Unavailable, c.cause())
	}
}

func (a answer) err() error {
	if a.code == codeOK {
		return nil
	}
	if kind := kindOf(a.code); kind != nil {
		return keeperError{string(a.payload), kind}
	}
	return errors.New(string(a.payload))
}

// keeperError is an error that the keeper returned, with its kind.
type keeperError struct {
	text string
	kind error
}

func (e keeperError) Error() string { return e.text }
func (e keeperError) Unwrap() error { return e.kind }

// cancel drops a call, and closes the files that came for it.
func (c *Client) cancel(seq uint32, pending *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, seq)
	for _, a := range pending.answers {
		sysfd.CloseFDs(a.fds)
	}
}

func (c *Client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// read delivers answers until the keeper is gone. Then it takes the keeper's lock if that is free,
// so that no new keeper can take it first.
func (c *Client) read() {
	buf := make([]byte, maxFrame)
	for {
		n, fds, err := sysfd.ReceiveFDs(c.conn, buf)
		if err == nil {
			var f frame
			if f, err = decodeFrame(buf[:n]); err == nil {
				c.deliver(answer{f, fds})
				continue
			}
			sysfd.CloseFDs(fds)
		}
		c.lose(err)
		return
	}
}

func (c *Client) lose(cause error) {
	c.mu.Lock()
	stateDir := c.from.stateDir
	c.mu.Unlock()
	lock, err := c.claim(stateDir, cause)
	c.mu.Lock()
	c.lock, c.err = lock, err
	c.mu.Unlock()
	close(c.lost)
	if lock != nil {
		time.AfterFunc(claimFor, c.giveUp)
	}
}

// giveUp releases the keeper's lock when TakeOver is not called in time, since this process hangs.
// A new keeper kills it then.
func (c *Client) giveUp() {
	lock := c.takeLock()
	if lock == nil {
		return
	}
	lock.Close()
	c.mu.Lock()
	c.err = errors.Join(fmt.Errorf("no take-over within %v", claimFor), c.err)
	c.mu.Unlock()
}

// takeLock returns the claimed lock, to one caller.
func (c *Client) takeLock() *sysfd.Lock {
	c.mu.Lock()
	defer c.mu.Unlock()
	lock := c.lock
	c.lock = nil
	return lock
}

func (c *Client) deliver(a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pending := c.waiting[a.seq]
	if pending == nil {
		sysfd.CloseFDs(a.fds)
		return
	}
	pending.answers = append(pending.answers, a)
	if a.code != codeMore {
		delete(c.waiting, a.seq)
		pending.done <- pending.answers
	}
}

// claim takes the keeper's lock after its death. The kernel may close the dead
// keeper's socket before its lock.
func (c *Client) claim(stateDir string, cause error) (*sysfd.Lock, error) {
	const patience = time.Second
	if stateDir == "" {
		return nil, cause
	}
	path := filepath.Join(stateDir, LockName)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		lock, holder, err := sysfd.TryLock(path)
		switch {
		case err != nil:
			return nil, errors.Join(cause, err)
		case lock != nil:
			return lock, cause
		case holder != c.keeper:
			return nil, fmt.Errorf("keeper is process %d now: %w", holder, cause)
		case time.Now().After(deadline):
			return nil, fmt.Errorf("keeper %d lives and has closed the connection: %w", holder, cause)
		}
	}
}
