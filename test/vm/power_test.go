//go:build vm

package vm

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The disk that outlives the machine, and the console, which outlives it as well: see power.sh.
const (
	powerDisk    = "/data"
	powerConsole = "/dev/console"
)

// powerPods is how many pods the kubelet runs.
const powerPods = 20

// TestPowerLoss is one round of power.sh. It checks what the last loss of power has left, has a kubelet run its pods
// again, and works until the next loss. The console has what berth acknowledged.
func TestPowerLoss(t *testing.T) {
	p := afterPowerLoss(t)
	k, _ := p.runPods()
	p.work(k)
}

// TestPowerRestored is the last round: everything is removed, and nothing is left.
func TestPowerRestored(t *testing.T) {
	p := afterPowerLoss(t)
	k, names := p.runPods()
	for _, name := range names {
		k.Remove(name)
	}
	k.Await("all pods to be gone", func() bool { return len(k.Pods()) == 0 && len(sandboxes(t, p.b)) == 0 })
	p.acknowledge("all pods gone")
	for _, dir := range []string{"pods/attachments", "pods/tombstones/sandboxes", "pods/tombstones/containers", "pods/sandboxes", "pods/containers"} {
		p.b.Await(dir+" to be empty", func() bool { return len(p.files(dir)) == 0 })
	}
}

// power is one boot of the machine.
type power struct {
	t *testing.T
	b *harness.Berth
	// truth is what berth acknowledged before the loss of power.
	truth truth
	// round is how many boots were before this one.
	round int
}

// truth is what the consoles of earlier boots say.
type truth struct {
	// images has the ids of images by name, and blobs the hashes of the file /blob in them. Images whose removal was
	// requested are in neither.
	images, blobs map[string]string
	// names are those of images, as they were acknowledged.
	names []string
	// ended has the codes of exited containers by id.
	ended map[string]int32
}

// afterPowerLoss checks that the node is as it was when the power went.
func afterPowerLoss(t *testing.T) *power {
	t.Helper()
	p := &power{t: t, truth: truth{images: map[string]string{}, blobs: map[string]string{}, ended: map[string]int32{}}}
	p.readConsoles(require.Given(t, "BERTH_POWER_CONSOLES", "directory with the consoles of earlier boots"))
	p.b = harness.Installed(t)
	p.awaitConditions()
	p.checkEnded()
	p.checkImages()
	for _, dir := range []string{"pods/quarantine", "images/quarantine"} {
		if found := p.files(dir); len(found) > 0 {
			t.Errorf("%s has %q", dir, found)
		}
	}
	if t.Failed() {
		t.FailNow() // before the work, which has no end
	}
	return p
}

// readConsoles reads what was acknowledged. The last line of a console may be cut off.
func (p *power) readConsoles(dir string) {
	p.t.Helper()
	consoles, err := filepath.Glob(filepath.Join(dir, "*"))
	must(p.t, err)
	p.round = len(consoles)
	slices.Sort(consoles) // their names are numbers of the same length
	for _, console := range consoles {
		file, err := os.Open(console)
		must(p.t, err)
		scanner := bufio.NewScanner(file)
		for scanner.Scan() {
			p.truth.read(strings.Fields(scanner.Text()))
		}
		must(p.t, errors.Join(scanner.Err(), file.Close()))
	}
}

func (w *truth) read(fields []string) {
	if len(fields) < 4 || fields[0] != "POWER" || fields[len(fields)-1] != "." {
		return
	}
	switch fields[1] {
	case "image":
		if len(fields) != 6 {
			return
		}
		w.images[fields[2]], w.blobs[fields[2]] = fields[3], fields[4]
		w.names = append(w.names, fields[2])
	case "removing":
		delete(w.images, fields[2])
		delete(w.blobs, fields[2])
	case "ended":
		if code, err := strconv.ParseInt(fields[3], 10, 32); err == nil {
			w.ended[fields[2]] = int32(code)
		}
	case "forgetting": // the containers that have ended
		clear(w.ended)
	}
}

// acknowledge prints a line to the console. It ends with a dot, so that one that was cut off is noticed.
func (p *power) acknowledge(format string, args ...any) {
	console, err := os.OpenFile(powerConsole, os.O_WRONLY, 0)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer console.Close()
	if _, err := fmt.Fprintf(console, "\nPOWER "+format+" .\n", args...); err != nil {
		p.t.Error(err)
	}
	// The line has left the machine before what it announces is done.
	if err := unix.IoctlSetInt(int(console.Fd()), unix.TCSBRK, 1); err != nil {
		p.t.Error(err)
	}
}

// awaitConditions waits until the runtime and the network are ready.
func (p *power) awaitConditions() {
	p.t.Helper()
	p.b.Await("the conditions of the runtime", func() bool {
		answer, err := p.b.Runtime.Status(p.b.Ctx(), &runtimeapi.StatusRequest{})
		return err == nil && !slices.ContainsFunc(answer.Status.Conditions, func(c *runtimeapi.RuntimeCondition) bool { return !c.Status })
	})
}

// checkEnded: containers that had exited are listed with their codes.
func (p *power) checkEnded() {
	p.t.Helper()
	for _, id := range slices.Sorted(maps.Keys(p.truth.ended)) {
		answer, err := p.b.Runtime.ContainerStatus(p.b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			p.t.Errorf("container %s had exited: %v", id, err)
			continue
		}
		if s := answer.Status; s.State != runtimeapi.ContainerState_CONTAINER_EXITED || s.ExitCode != p.truth.ended[id] {
			p.t.Errorf("container %s is %v with code %d, want exited with %d", id, s.State, s.ExitCode, p.truth.ended[id])
		}
	}
	p.t.Logf("%d containers had exited", len(p.truth.ended))
}

// checkImages: all images that berth acknowledged are there, everything in the store is right by digest, and what the
// newest of each kind contains is right when it runs.
func (p *power) checkImages() {
	p.t.Helper()
	for name, id := range p.truth.images {
		if got := p.imageID(name); got != id {
			p.t.Errorf("image %s is %q, want %q", name, got, id)
		}
	}
	p.t.Logf("%d images; %s", len(p.truth.images), strings.TrimSpace(p.b.MustCLI("image", "fsck")))
	for i, name := range []string{p.newest("/pulled/"), p.newest("/imported/")} {
		if name == "" {
			continue
		}
		config := p.b.Sandbox(fmt.Sprintf("try-%d-%d", p.round, i))
		sandbox := p.b.RunSandbox(config)
		container := p.b.Container("c", "sha256sum < /blob")
		container.Image = &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}
		id := p.b.Create(sandbox, container, config)
		p.b.StartContainer(id)
		p.b.AwaitExit(id)
		lines, err := harness.LogLines(filepath.Join(config.LogDirectory, "c", "0.log"))
		if err != nil || len(lines) != 1 || strings.Fields(lines[0])[0] != p.truth.blobs[name] {
			p.t.Errorf("the content of image %s is %q (%v), want %s", name, lines, err, p.truth.blobs[name])
		}
		p.b.RemovePod(sandbox)
	}
}

// newest is the image of a kind that was acknowledged last and not removed, "" for none.
func (p *power) newest(kind string) string {
	for _, name := range slices.Backward(p.truth.names) {
		if _, kept := p.truth.images[name]; kept && strings.Contains(name, kind) {
			return name
		}
	}
	return ""
}

// imageID is the id of an image, "" if it is not there.
func (p *power) imageID(name string) string {
	answer, err := p.b.Images.ImageStatus(p.b.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil {
		p.t.Errorf("image %s: %v", name, err)
	}
	return answer.GetImage().GetId()
}

// files are the names in a directory below the root directory of berth.
func (p *power) files(dir string) []string {
	p.t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.b.Root, dir))
	if err != nil && !os.IsNotExist(err) {
		p.t.Error(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// kubelet starts one that has the state of the last boot, without the pods of its work.
func (p *power) kubelet() (k *kubelet.Kubelet, names []string) {
	p.t.Helper()
	dir := filepath.Join(powerDisk, "kubelet")
	p.acknowledge("forgetting - -")
	// The other manifests stay, as on a node: a kubelet that starts without them ends the pods of the last boot.
	for _, kind := range []string{"ends-*", "starts-*"} {
		manifests, err := filepath.Glob(filepath.Join(dir, "manifests", kind))
		must(p.t, err)
		for _, manifest := range manifests {
			must(p.t, os.Remove(manifest))
		}
	}
	k = kubelet.Start(p.t, p.b, kubelet.Options{CgroupDriver: "systemd", Dir: dir})
	for name, manifest := range kubelet.Manifests(powerPods, require.Patience(time.Second)) {
		k.Add(name, manifest)
		names = append(names, name)
	}
	return k, names
}

// runPods starts a kubelet and waits until its pods run, and only they have addresses.
func (p *power) runPods() (k *kubelet.Kubelet, names []string) {
	p.t.Helper()
	k, names = p.kubelet()
	k.AwaitReady(names...)
	p.acknowledge("%d pods ready", len(names))
	p.awaitAttachments()
	return k, names
}

// awaitAttachments waits until only the pods that run have addresses.
func (p *power) awaitAttachments() {
	p.t.Helper()
	p.b.Await("the attachments of earlier boots to be gone", func() bool {
		ready := slices.DeleteFunc(sandboxes(p.t, p.b), func(s *runtimeapi.PodSandbox) bool {
			return s.State != runtimeapi.PodSandboxState_SANDBOX_READY
		})
		return len(ready) == powerPods && len(p.files("pods/attachments")) == powerPods
	})
}

// blob is the content of a file, the same for the same name, and its hash.
func blob(name string) (content []byte, hash string) {
	sum := sha256.Sum256([]byte(name))
	for len(content) < 2<<20 {
		content = append(content, sum[:]...)
		sum = sha256.Sum256(sum[:])
	}
	whole := sha256.Sum256(content)
	return content, hex.EncodeToString(whole[:])
}

// pause waits, as what happens to a node does not happen without one.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(require.Patience(d)):
	case <-ctx.Done():
	}
}
