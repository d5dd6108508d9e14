//go:build integration

package builtin_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// transfer sends size bytes from one namespace to another and returns how long it took.
func (l *lab) transfer(from, to, addr string, size int) time.Duration {
	l.t.Helper()
	var listener net.Listener
	var out net.Conn
	if err := sysns.InNetNS(to, func() (err error) { listener, err = net.Listen("tcp", addr+":0"); return err }); err != nil {
		l.t.Fatal(err)
	}
	defer listener.Close()
	received := make(chan int64, 1)
	go func() {
		in, err := listener.Accept()
		if err != nil {
			received <- -1
			return
		}
		defer in.Close()
		n, _ := io.Copy(io.Discard, in)
		received <- n
	}()
	if err := sysns.InNetNS(from, func() (err error) { out, err = net.Dial("tcp", listener.Addr().String()); return err }); err != nil {
		l.t.Fatal(err)
	}
	begin := time.Now()
	if _, err := out.Write(make([]byte, size)); err != nil {
		l.t.Error(err)
	}
	out.Close()
	if n := <-received; n != int64(size) {
		l.t.Errorf("%d of %d bytes arrived", n, size)
	}
	return time.Since(begin)
}

// TestBandwidth: a pod is not faster than its annotations allow, in each direction separately.
// Nothing of the limit is left after the pod. An invalid annotation is refused.
func TestBandwidth(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	limited := l.pod()
	limited.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"}
	pod := l.attach(n, limited).IPs[0].String()
	free := l.pod()
	other := l.attach(n, free).IPs[0].String()
	// Each size takes a second, and is larger than the burst that the bucket lets pass at once.
	if took := l.transfer(free.NetNS, limited.NetNS, pod, 1_000_000); took < 700*time.Millisecond {
		t.Errorf("the pod received 8 million bits in %s", took)
	}
	if took := l.transfer(limited.NetNS, free.NetNS, other, 2_000_000); took < 700*time.Millisecond {
		t.Errorf("the pod sent 16 million bits in %s", took)
	}
	if links := l.run(l.host, "ip", "link"); strings.Count(links, "ifb-") != 1 {
		t.Errorf("links:\n%s", links)
	}
	bad := l.pod()
	bad.Annotations = map[string]string{"kubernetes.io/egress-bandwidth": "fast"}
	if _, err := n.Attach(t.Context(), bad); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "egress-bandwidth") {
		t.Errorf("a limit that is no quantity: %v", err)
	}
	if err := n.GC(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if links := l.run(l.host, "ip", "link"); strings.Contains(links, "ifb-") || strings.Contains(links, "veth") {
		t.Errorf("left:\n%s", links)
	}
}
