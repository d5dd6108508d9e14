package keep

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfd"
	"github.com/berthrun/berth/internal/sys/sysproc"
)

// request is a frame with the descriptors that came with it.
type request struct {
	frame
	fds []int
	err error
}

// read passes on what the supervisor sends, until its end of the socket is closed.
func (c *child) read() {
	defer close(c.requests)
	buf := make([]byte, maxFrame)
	for {
		n, fds, err := sysfd.ReceiveFDs(c.conn, buf)
		if err != nil {
			c.pass(request{err: err})
			return
		}
		f, err := decodeFrame(buf[:n])
		if !c.pass(request{frame: f, fds: fds, err: err}) {
			sysfd.CloseFDs(fds)
			return
		}
	}
}

func (c *child) pass(r request) bool {
	if errors.Is(r.err, io.EOF) {
		return false
	}
	select {
	case c.requests <- r:
		return true
	case <-c.gone:
		return false
	}
}

// serve answers one request of c, which may be dead already.
func (k *keeper) serve(c *child, req request) {
	if req.op != opHold {
		sysfd.CloseFDs(req.fds)
	}
	if req.err != nil {
		// The peer sends what cannot be read. It ends when its connection is closed.
		if c == k.child {
			k.log.Error("the supervisor's socket failed", "error", req.err)
		}
		sysfd.CloseFDs(req.fds)
		c.conn.Close()
		return
	}
	payload, err := k.handle(c, req)
	if errors.Is(err, errAnswerLater) {
		return
	}
	k.answer(c, req.frame, payload, err)
	if req.op == opReady {
		// The supervisor is up and the keeper is idle from now on: it frees the memory
		// that the start took.
		if err := sysproc.ReleaseMemory(); err != nil {
			k.log.Debug("cannot return memory to the host", "error", err)
		}
	}
}

// errAnswerLater says that the answer is sent when the work is done.
var errAnswerLater = errors.New("answer later")

func (k *keeper) handle(c *child, req request) ([]byte, error) {
	switch req.op {
	case opHello:
		return k.hello().encode()
	case opHold:
		return nil, k.held.hold(string(req.payload), req.fds)
	case opRelease:
		k.held.release(string(req.payload))
		return nil, nil
	case opList:
		return nil, k.list(c, req.frame)
	case opLookup:
		return k.lookup(req.payload)
	case opForget:
		id, err := decodeIdentity(req.payload)
		if err != nil {
			return nil, err
		}
		return nil, k.ledger.forget(id)
	case opReady:
		k.childReady(c)
		return nil, nil
	case opUpgrade:
		if c != k.child {
			return nil, fmt.Errorf("supervisor: %w", errs.NotFound)
		}
		seq := req.seq
		k.beginUpgrade(func(err error) { k.answer(c, frame{op: opUpgrade, seq: seq}, nil, err) })
		return nil, errAnswerLater
	}
	return nil, fmt.Errorf("request %d: %w", req.op, errs.Unsupported)
}

// answer ends a request. A peer that does not read would block the keeper: its connection is
// closed, and it is started again.
func (k *keeper) answer(c *child, req frame, payload []byte, err error) {
	reply := frame{op: req.op, seq: req.seq, code: codeOf(err), payload: payload}
	if err != nil {
		reply.payload = []byte(truncate(err.Error(), maxFrame-frameHead))
	}
	if err := c.send(reply, nil); err != nil && c == k.child {
		k.log.Error("cannot answer the supervisor", "error", err)
		c.conn.Close()
	}
}

// answerPatience is how long a supervisor may leave its socket full. On an overloaded host it may get no CPU for
// seconds.
const answerPatience = 30 * time.Second

func (c *child) send(f frame, fds []int) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(answerPatience)); err != nil {
		return fmt.Errorf("cannot answer the supervisor: %w", err)
	}
	return sysfd.SendFDs(c.conn, f.encode(), fds)
}

func (k *keeper) list(c *child, req frame) error {
	for _, key := range k.held.fds.Keys() {
		fds, _ := k.held.fds.Get(key)
		more := frame{op: opList, seq: req.seq, code: codeMore, payload: []byte(key)}
		if err := c.send(more, fds); err != nil {
			return err
		}
	}
	return nil
}

// lookup looks for zombies first: the supervisor may ask as soon as a process has ended, before
// the keeper has handled its SIGCHLD.
func (k *keeper) lookup(payload []byte) ([]byte, error) {
	id, err := decodeIdentity(payload)
	if err != nil {
		return nil, err
	}
	k.sweep()
	e, ok := k.ledger.lookup(id)
	if !ok {
		return nil, fmt.Errorf("exit of process %d: %w", id.pid, errs.NotFound)
	}
	return encodeRecord(id, e, 0), nil
}

func (k *keeper) childReady(c *child) {
	if c != k.child {
		return
	}
	c.ready, k.status.Ready = true, true
	k.publish()
	k.notify.ready(fmt.Sprintf("supervisor is process %d", c.pid))
}

// hello sends the supervisor what it needs to become the keeper.
func (k *keeper) hello() hello {
	return hello{stateDir: k.opts.StateDir, binary: k.opts.Binary, notify: k.notify.path, args: commandLine()}
}

// hello is the answer to opHello: texts, each ended by a zero byte.
type hello struct {
	stateDir, binary, notify string
	// args is the keeper's own command line.
	args []string
}

func (h hello) encode() ([]byte, error) {
	texts := append([]string{h.stateDir, h.binary, h.notify}, h.args...)
	b := []byte(strings.Join(texts, "\x00"))
	if len(b) > maxFrame-frameHead {
		return nil, fmt.Errorf("command line of %d bytes: %w", len(b), errs.Invalid)
	}
	return b, nil
}

func decodeHello(b []byte) (hello, error) {
	const fixed = 3
	texts := strings.Split(string(b), "\x00")
	if len(texts) <= fixed {
		return hello{}, fmt.Errorf("hello of %d texts: %w", len(texts), errs.Invalid)
	}
	return hello{stateDir: texts[0], binary: texts[1], notify: texts[2], args: texts[fixed:]}, nil
}

func truncate(s string, limit int) string {
	if len(s) > limit {
		return s[:limit]
	}
	return s
}
