// Package nspool keeps a few network namespaces ready, with their loopback up.
// None is ever used twice, and none outlives the process.
package nspool

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/berthrun/berth/internal/figures"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// quiet is how long no namespace has been taken before the pool makes another one. A pod is attached to its network once it
// has its namespace, and the kernel changes one network at a time: a namespace that is made meanwhile would delay the pod.
const quiet = 30 * time.Millisecond

// Pool has ready namespaces. All methods are safe for concurrent use.
type Pool struct {
	size int

	mu      sync.Mutex
	ready   []*os.File
	filling bool
	closed  bool
	taken   time.Time // when the last one was
	// few gets a value when less than half of the namespaces are ready.
	few chan struct{}
	// ended is closed when the pool is.
	ended chan struct{}

	hits, misses uint64
}

// Figures counts the namespaces that are kept ready.
func (p *Pool) Figures() figures.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return figures.Pool{Name: "network_namespaces", Size: p.size, Ready: len(p.ready), Hits: p.hits, Misses: p.misses}
}

// New returns a pool that keeps size namespaces ready; the first ones are made in
// the background, once after is closed, or at once if it is nil.
func New(size int, after <-chan struct{}) *Pool {
	p := &Pool{size: size, few: make(chan struct{}, 1), ended: make(chan struct{})}
	if after == nil {
		p.refill()
		return p
	}
	go func() {
		select {
		case <-after:
			p.refill()
		case <-p.ended:
		}
	}()
	return p
}

// Pin pins a fresh namespace at path; see sysns.PinNetNS.
func (p *Pool) Pin(path string) error {
	ns := p.take()
	p.refill()
	if ns == nil {
		return sysns.NewNetNS(path)
	}
	return errors.Join(sysns.PinNetNS(ns, path), ns.Close())
}

// Close closes the namespaces that are ready. Pins stay.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		close(p.ended)
	}
	p.closed = true
	var errList []error
	for _, ns := range p.ready {
		errList = append(errList, ns.Close())
	}
	p.ready = nil
	return errors.Join(errList...)
}

func (p *Pool) take() *os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		p.misses++
		return nil
	}
	p.hits++
	p.taken = time.Now()
	ns := p.ready[len(p.ready)-1]
	p.ready = p.ready[:len(p.ready)-1]
	if p.hasFew() {
		select {
		case p.few <- struct{}{}:
		default: // the pool has it already
		}
	}
	return ns
}

// hasFew reports whether less than half of the namespaces are ready. The caller holds the lock.
func (p *Pool) hasFew() bool { return 2*len(p.ready) < p.size }

// refill makes the missing namespaces, by one goroutine at a time.
func (p *Pool) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filling || p.closed || len(p.ready) >= p.size {
		return
	}
	p.filling = true
	go p.fill()
}

func (p *Pool) fill() {
	for {
		p.wait()
		// An error is dropped: the next Pin makes its own namespace and returns its error.
		ns, err := sysns.OpenNewNetNS()
		if more := p.put(ns, err == nil); !more {
			return
		}
	}
}

// wait returns once no namespace has been taken for a while, or few are ready.
func (p *Pool) wait() {
	for {
		p.mu.Lock()
		pause := quiet - time.Since(p.taken)
		now := pause <= 0 || p.closed || p.hasFew()
		p.mu.Unlock()
		if now {
			return
		}
		select {
		case <-time.After(pause):
		case <-p.few:
		case <-p.ended:
		}
	}
}

// put adds a namespace and reports whether more are missing.
func (p *Pool) put(ns *os.File, ok bool) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok && p.closed {
		ns.Close()
	} else if ok {
		p.ready = append(p.ready, ns)
	}
	more = ok && !p.closed && len(p.ready) < p.size
	p.filling = more
	return more
}
