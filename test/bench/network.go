package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const berthCNIConfig = `[network]
mode = "cni"
conf_dir = "%[1]s/net.d"
bin_dirs = ["%[2]s"]
inprocess = %[3]t
[metrics]
listen = "unix://%[1]s/metrics.sock"
`

// newBerthWithCNI is a berth that runs the reference CNI plugins as programs, or its own in its process.
func newBerthWithCNI(o options, name, bridge, subnet string, inProcess bool) (*peer, error) {
	p, err := newBerth(o, name, o.berth)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(p.socket)
	p.config = fmt.Sprintf(berthCNIConfig, dir, o.bin, inProcess) + fmt.Sprintf(cniNetwork, bridge, dir, subnet)
	p.argv = []string{
		p.argv[0], "serve", "--config", filepath.Join(dir, "config.toml"), "--listen", "unix://" + p.socket,
		"--root", filepath.Join(dir, "root"), "--state", filepath.Join(dir, "state"),
	}
	return p, nil
}

// namespaceGone is how long the kernel may take to remove the network namespace of the pod before. It removes it in the
// background, and holds the lock that each change of a link needs.
const namespaceGone = 200 * time.Millisecond

// networks measures what the network costs in RunPodSandbox, with CNI plugins in berth's process and as programs: two
// daemons with the same CNI configuration, in turns.
func networks(ctx context.Context, o options, _ []*peer, r *registry) (t *table, err error) {
	t = &table{Title: fmt.Sprintf("CNI plugins bridge, host-local and portmap (%d pods)", o.pods)}
	inside, err := newBerthWithCNI(o, "in-process", "cnii0", "10.205.0.0/16", true)
	if err != nil {
		return nil, err
	}
	programs, err := newBerthWithCNI(o, "programs", "cnip0", "10.206.0.0/16", false)
	if err != nil {
		return nil, err
	}
	programs.beside = inside.name
	peers := []*peer{inside, programs}
	for _, p := range peers {
		if err := p.start(ctx); err != nil {
			return nil, fmt.Errorf("cannot start %s: %w", p.name, err)
		}
		defer func() { err = errors.Join(err, p.shutdown()) }()
		if err := p.pull(ctx, r.image("bench:1")); err != nil {
			return nil, fmt.Errorf("%s cannot pull the test image: %w", p.name, err)
		}
	}
	t.Peers = infos(peers)
	const warmUps = 3
	for i := range o.pods + warmUps {
		for _, p := range peers {
			time.Sleep(namespaceGone)
			if err := networkOfPod(ctx, t, p, r, fmt.Sprintf("net-%d", i), i < warmUps); err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return t, nil
}

func networkOfPod(ctx context.Context, t *table, p *peer, r *registry, name string, warmUp bool) error {
	before, err := p.attached(ctx)
	if err != nil {
		return err
	}
	if err := onePod(ctx, t, p, r, name, warmUp); err != nil || warmUp {
		return err
	}
	after, err := p.attached(ctx)
	if err != nil {
		return err
	}
	t.sample(p.name, "network of RunPodSandbox", after-before)
	return nil
}

// attached returns how long berth has attached sandboxes to their networks since its start, by its metrics.
func (p *peer) attached(ctx context.Context) (time.Duration, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(filepath.Dir(p.socket), "metrics.sock"))
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "} ")
		if !strings.HasPrefix(name, "berth_job_stage_duration_seconds_sum{") || !strings.Contains(name, `stage="attach network"`) {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		return time.Duration(seconds * float64(time.Second)), err
	}
	return 0, nil // before the first pod
}
