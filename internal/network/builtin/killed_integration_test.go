//go:build integration

package builtin_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/network/builtin"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestKilled kills a process that attaches and detaches, at random moments. Each time the records,
// links, maps and addresses match. Nothing is left at the end.
func TestKilled(t *testing.T) {
	l := newLab(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 30 {
		victim := exec.Command(os.Args[0], "-test.run=^TestKilledVictim$", "-test.v")
		victim.Env = append(os.Environ(), killedLab+"="+l.dir, fmt.Sprintf("BERTH_TEST_ROUND=%d", round))
		ready, err := victim.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := victim.Start(); err != nil {
			t.Fatal(err)
		}
		awaitLine(t, ready, "ready")
		time.Sleep(time.Duration(random.IntN(60_000)) * time.Microsecond)
		victim.Process.Kill()
		victim.Wait()
		l.checkRecovery(t)
	}
	n := l.open(l.config())
	if err := errors.Join(n.GC(t.Context(), nil), n.Close()); err != nil {
		t.Error(err)
	}
	l.wantNothing()
	pins, _ := filepath.Glob(filepath.Join(l.dir, "victim-*"))
	for _, pin := range pins {
		if err := sysns.RemoveNetNS(pin); err != nil {
			t.Error(err)
		}
	}
}

// checkRecovery opens the network as the next daemon would, and completes what the records require.
func (l *lab) checkRecovery(t *testing.T) {
	t.Helper()
	n := l.open(l.config())
	defer n.Close()
	pins, _ := filepath.Glob(filepath.Join(l.dir, "victim-*"))
	var live []string
	seen := map[netip.Addr]string{}
	for i, pin := range pins {
		id := strings.TrimPrefix(filepath.Base(pin), "victim-")
		att := victimPod(l.dir, id)
		if i%2 == 0 { // as if this sandbox continued
			if _, err := sysns.OpenNetNS(pin); err != nil {
				if err := errors.Join(n.Detach(t.Context(), att), sysns.RemoveNetNS(pin)); err != nil {
					t.Error(err)
				}
				continue
			}
			for _, ip := range l.attach(n, att).IPs {
				if other, taken := seen[ip]; taken {
					t.Errorf("%s is given to %s and %s", ip, other, id)
				}
				seen[ip] = id
				if _, _, err := ask(l.host, "tcp", ip.String(), 9); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("pod %s does not answer at %s: %v", id, ip, err)
				}
			}
			live = append(live, id)
		}
	}
	if err := n.GC(t.Context(), live); err != nil {
		t.Error(err)
	}
	for _, pin := range pins {
		if !slices.Contains(live, strings.TrimPrefix(filepath.Base(pin), "victim-")) {
			if err := sysns.RemoveNetNS(pin); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%d namespaces found, %d live", len(pins), len(live))
	want := fmt.Sprint(len(live))
	for deadline := time.Now().Add(10 * time.Second); n.Info()["attachments"] != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s attachments, want %s", n.Info()["attachments"], want)
		}
	}
	if links := strings.Count(l.run(l.host, "ip", "-o", "link"), "veth"); links != len(live) {
		t.Errorf("%d links on the host, %d pods live", links, len(live))
	}
	if elements := strings.Count(l.run(l.host, "nft", "list", "map", "inet", "berth", "ports4"), "tcp"); elements != len(live) {
		t.Errorf("%d host ports in the map, %d pods live", elements, len(live))
	}
}

func awaitLine(t *testing.T, from interface{ Read([]byte) (int, error) }, want string) {
	t.Helper()
	b := make([]byte, 4096)
	var all string
	for !strings.Contains(all, want) {
		size, err := from.Read(b)
		all += string(b[:size])
		if err != nil {
			t.Fatalf("the process ended: %v\n%s", err, all)
		}
	}
}

func victimPod(dir, id string) *network.Attachment {
	number, _ := strconv.ParseUint(id[:11], 16, 64)
	return &network.Attachment{
		SandboxID: id, NetNS: filepath.Join(dir, "victim-"+id), Name: "p", Namespace: "d",
		Ports: []network.Port{{Protocol: "tcp", HostPort: uint16(10000 + number%40000), ContainerPort: 80}},
	}
}

// TestKilledVictim is the process that TestKilled kills.
func TestKilledVictim(t *testing.T) {
	dir := os.Getenv(killedLab)
	if dir == "" {
		return // started without TestKilled
	}
	round, _ := strconv.Atoi(os.Getenv("BERTH_TEST_ROUND"))
	n, err := builtin.New(t.Context(), builtin.Config{
		StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root"), HostNetNS: filepath.Join(dir, "host"),
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := 0; ; i++ {
				att := victimPod(dir, fmt.Sprintf("%011x%053x", 1<<30+round<<20+i<<2+w, 0))
				if err := sysns.NewNetNS(att.NetNS); err != nil {
					t.Error(err)
				}
				if _, err := n.Attach(t.Context(), att); err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					continue // keep this sandbox
				}
				if err := errors.Join(n.Detach(t.Context(), att), sysns.RemoveNetNS(att.NetNS)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}
