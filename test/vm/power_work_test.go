//go:build vm

package vm

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/kubelet"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// powerWork is how long the work goes on when nobody takes the power.
const powerWork = 90 * time.Second

// powerKept is how many images the work keeps.
const powerKept = 3

// work has the node do everything at once until the power goes: images are pulled, imported and removed, pods start,
// end and are removed, berth is restarted and upgraded. The work ignores errors of requests: berth is away at times.
func (p *power) work(k *kubelet.Kubelet) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), require.Patience(powerWork))
	defer cancel()
	registry := &imagetest.Registry{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(p.t, err)
	server := &http.Server{Handler: registry, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	go p.images(ctx, fmt.Sprintf("%s/pulled/r%d", listener.Addr(), p.round), func(spec imagetest.Spec, tag string) error {
		img, err := imagetest.Build(spec)
		if err != nil {
			return err
		}
		registry.Push(fmt.Sprintf("pulled/r%d", p.round), tag, img)
		_, err = p.b.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: spec.Name}})
		return err
	})
	go p.images(ctx, fmt.Sprintf("docker.io/imported/r%d", p.round), func(spec imagetest.Spec, _ string) error {
		var archive bytes.Buffer
		if err := imagetest.Archive(&archive, spec); err != nil {
			return err
		}
		_, err := p.b.Import(&archive)
		return err
	})
	go p.repeat(ctx, func(i int) { p.pod(ctx, k, i) })
	go p.repeat(ctx, func(i int) { p.disturb(ctx, i) })
	for name := range p.truth.images {
		p.removeImage(ctx, name)
	}
	p.acknowledge("working - -")
	<-ctx.Done()
	p.t.Error("nobody took the power")
}

// repeat calls a function with 0, 1, 2 until the power goes.
func (p *power) repeat(ctx context.Context, do func(i int)) {
	for i := 0; ctx.Err() == nil; i++ {
		do(i)
	}
}

// images makes one image of a repository after the other, acknowledges each, and keeps the newest.
func (p *power) images(ctx context.Context, repository string, load func(spec imagetest.Spec, tag string) error) {
	var kept []string
	p.repeat(ctx, func(i int) {
		tag := strconv.Itoa(i)
		name := repository + ":" + tag
		content, hash := blob(name)
		spec := harness.BusyboxSpec(p.b, name)
		spec.Layers, spec.Files = []imagetest.Layer{spec.Files}, []imagetest.File{{Path: "/blob", Content: content}}
		if load(spec, tag) != nil {
			pause(ctx, 100*time.Millisecond)
			return
		}
		answer, err := p.b.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		if err != nil || answer.Image == nil {
			return // the daemon ended after the load
		}
		p.acknowledge("image %s %s %s", name, answer.Image.Id, hash)
		if kept = append(kept, name); len(kept) > powerKept {
			p.removeImage(ctx, kept[0])
			kept = kept[1:]
		}
	})
}

func (p *power) removeImage(ctx context.Context, name string) {
	p.acknowledge("removing %s -", name)
	_, _ = p.b.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
}

// pod runs a static pod that ends, and acknowledges how.
func (p *power) pod(ctx context.Context, k *kubelet.Kubelet, i int) {
	name, code := fmt.Sprintf("ends-%d-%d", p.round, i), int32(i%100+1)
	k.Add(name, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: "%s", imagePullPolicy: Never, command: [/bin/sh, -c, "echo last words; exit %d"]}
`, name, harness.Busybox, code))
	for ctx.Err() == nil {
		list, err := p.b.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": name + "-node0"},
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED},
		}})
		if err == nil && len(list.Containers) == 1 {
			pause(ctx, time.Second) // berth collects tombstones before it writes them
			p.acknowledge("ended %s %d", list.Containers[0].Id, code)
			break
		}
		pause(ctx, 100*time.Millisecond)
	}
	if i%3 == 2 { // and one more that is removed while it starts
		name := fmt.Sprintf("starts-%d-%d", p.round, i)
		k.Add(name, kubelet.Manifests(1, time.Second)["http-0"])
		pause(ctx, time.Second)
		k.Remove(name)
	}
}

// disturb restarts and upgrades berth, in turns.
func (p *power) disturb(ctx context.Context, i int) {
	pause(ctx, 3*time.Second)
	command := []string{"restart", harness.DaemonUnit}
	switch i % 3 {
	case 1:
		command = []string{"kill", "--kill-whom=main", "--signal=HUP", harness.SupervisorUnit} // upgrades the supervisor
	case 2:
		command = []string{"restart", harness.SupervisorUnit}
	}
	if out, err := exec.CommandContext(ctx, "systemctl", command...).CombinedOutput(); err != nil && ctx.Err() == nil {
		p.acknowledge("failed systemctl %q %q", strings.Join(command, " "), string(out))
	}
}
