//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPodRunsLogsAndExits(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("hello", `echo out; echo err >&2; exit 7`)
	status := b.AwaitExit(pod.Container)
	if status.ExitCode != 7 || status.Reason != "Error" {
		t.Errorf("exit code %d, reason %q; want 7, Error", status.ExitCode, status.Reason)
	}
	if status.StartedAt < status.CreatedAt || status.FinishedAt < status.StartedAt {
		t.Errorf("times out of order: created %d, started %d, finished %d", status.CreatedAt, status.StartedAt, status.FinishedAt)
	}
	lines, err := harness.LogLines(pod.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	if !b.Has(harness.OrderedStreams) {
		slices.SortFunc(lines, func(x, y string) int { return strings.Compare(y, x) })
	}
	if diff := cmp.Diff([]string{"out", "err"}, lines); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if status.LogPath != pod.LogFile {
		t.Errorf("log path %q, want %q", status.LogPath, pod.LogFile)
	}
	if status := b.SandboxStatus(pod.Sandbox); status.State != runtimeapi.PodSandboxState_SANDBOX_READY || status.Network.Ip == "" {
		t.Errorf("sandbox %v with address %q, want READY with one", status.State, status.Network.GetIp())
	}
}

func TestStatusTellsWhatWasAsked(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("status", "sleep 1000")
	status := b.Status(pod.Container)
	if status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("state %v", status.State)
	}
	if status.Metadata.Name != "c" || status.Labels["container"] != "c" || status.Image.Image != harness.Busybox || status.ImageRef == "" {
		t.Errorf("status %v", status)
	}
	sandbox := b.SandboxStatus(pod.Sandbox)
	if diff := cmp.Diff(pod.Config.Labels, sandbox.Labels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(pod.Config.Annotations, sandbox.Annotations); diff != "" {
		t.Error(diff)
	}
	verbose, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: pod.Container[:12], Verbose: true})
	if err != nil {
		t.Fatalf("by prefix, verbose: %v", err)
	}
	if len(verbose.Info) == 0 {
		t.Error("verbose status has no info")
	}
}

func TestStopSendsSignalThenKills(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	polite := b.RunPod("polite", `trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done`)
	stubborn := b.RunPod("stubborn", `trap '' TERM; echo up; while :; do sleep 0.1; done`)
	for _, pod := range []harness.Pod{polite, stubborn} {
		b.Await("the trap", func() bool { lines, _ := harness.LogLines(pod.LogFile); return len(lines) > 0 })
	}
	for pod, want := range map[harness.Pod]int32{polite: 3, stubborn: 137} {
		if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 1}); err != nil {
			t.Fatal(err)
		}
		if status := b.Status(pod.Container); status.State != runtimeapi.ContainerState_CONTAINER_EXITED || status.ExitCode != want {
			t.Errorf("%v code %d, want EXITED %d", status.State, status.ExitCode, want)
		}
	}
}

func TestExecSync(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("exec", "sleep 1000")
	answer := b.Exec(pod.Container, "echo o; echo e >&2; exit 5")
	if string(answer.Stdout) != "o\n" || string(answer.Stderr) != "e\n" || answer.ExitCode != 5 {
		t.Errorf("got %q %q %d", answer.Stdout, answer.Stderr, answer.ExitCode)
	}
	if got := b.ExecOut(pod.Container, "hostname"); got != "exec" {
		t.Errorf("hostname %q", got)
	}
	if got := b.ExecOut(pod.Container, "cat /etc/resolv.conf"); !strings.Contains(got, "nameserver 192.0.2.53") {
		t.Errorf("resolv.conf %q", got)
	}
	// A child that keeps the output open does not delay the answer.
	if got := b.ExecOut(pod.Container, "sleep 500 & echo done"); got != "done" {
		t.Errorf("got %q", got)
	}
	if _, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{
		ContainerId: pod.Container, Cmd: []string{"sh", "-c", "sleep 612 & sleep 613"}, Timeout: 1,
	}); err == nil || !strings.Contains(err.Error(), "timeout") && !strings.Contains(err.Error(), "timed out") && !strings.Contains(err.Error(), "deadline") {
		t.Errorf("exec over its timeout: %v", err)
	}
	left := "sleep 61"
	if !b.Has(harness.LoneCommands) {
		left = "sleep 613" // the command itself, without its children
	}
	b.Await("everything that the exec started to end", func() bool {
		return !strings.Contains(b.ExecOut(pod.Container, "ps"), left)
	})
	_, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: pod.Container, Cmd: []string{"/no/such"}})
	if err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("exec of nothing: %v", err)
	}
}

func TestNetworkOfPods(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	config := b.Sandbox("web")
	config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: 18080}}
	sandbox := b.RunSandbox(config)
	server := b.Create(sandbox, b.Container("c", `mkdir -p /www; echo it works > /www/index.html; httpd -f -p 8080 -h /www`), config)
	b.StartContainer(server)
	network := b.SandboxStatus(sandbox).Network
	client := b.RunPod("client", "sleep 1000")
	addresses := []string{network.Ip}
	for _, more := range network.AdditionalIps {
		addresses = append(addresses, more.Ip)
	}
	if len(addresses) != 2 {
		t.Errorf("addresses %v, want one of each family", addresses)
	}
	b.Await("the server", func() bool { return b.Exec(client.Container, "echo | nc -w 2 "+network.Ip+" 8080").ExitCode == 0 })
	for _, from := range []struct {
		what string
		try  func(host string, port string) bool
	}{
		{"pod", func(host, port string) bool {
			return b.Exec(client.Container, "echo | nc -w 2 "+host+" "+port).ExitCode == 0
		}},
		{"host", func(host, port string) bool {
			return b.InHost("busybox", "nc", "-w", "2", host, port).Run() == nil
		}},
	} {
		for _, address := range addresses {
			if !from.try(address, "8080") {
				t.Errorf("%s cannot reach %s", from.what, address)
			}
		}
	}
	if err := b.InHost("busybox", "nc", "-w", "2", "127.0.0.1", "18080").Run(); err != nil {
		t.Errorf("host port from the host itself: %v", err)
	}
	if err := b.InWorld("busybox", "nc", "-w", "2", "192.0.2.10", "18080").Run(); err != nil {
		t.Errorf("host port from another machine: %v", err)
	}
	if got := b.Exec(client.Container, "ping -c 1 -W 2 192.0.2.1"); got.ExitCode != 0 {
		t.Errorf("a pod cannot reach the world: %s%s", got.Stdout, got.Stderr)
	}
	second := b.Sandbox("second")
	second.PortMappings = config.PortMappings
	if _, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: second}); err == nil || !strings.Contains(err.Error(), "18080") {
		t.Errorf("a taken host port: %v", err)
	}
}

func TestNoDescriptorButThreeInAnInit(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for i := range 20 {
		b.RunPod(fmt.Sprintf("other-%d", i), "sleep 1000")
	}
	pod := b.RunPod("fds", `sleep 1000`)
	got := strings.Fields(b.ExecOut(pod.Container, "ls /proc/1/fd"))
	if diff := cmp.Diff([]string{"0", "1", "2"}, got); diff != "" {
		t.Errorf("descriptors of init (-want +got):\n%s", diff)
	}
}

func TestReopenedLogGoesToANewFile(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("rotate", `i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo line $i; [ $((i % 100)) = 0 ] && sleep 0.05; done`)
	for i := range 5 {
		b.Await("the log", func() bool { info, err := os.Stat(pod.LogFile); return err == nil && info.Size() > 0 })
		if err := os.Rename(pod.LogFile, pod.LogFile+"."+string(rune('a'+i))); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Runtime.ReopenContainerLog(b.Ctx(), &runtimeapi.ReopenContainerLogRequest{ContainerId: pod.Container}); err != nil {
			if b.Status(pod.Container).State == runtimeapi.ContainerState_CONTAINER_EXITED {
				break
			}
			t.Fatal(err)
		}
	}
	b.AwaitExit(pod.Container)
	files, err := filepath.Glob(pod.LogFile + ".?")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range append(files, pod.LogFile) {
		lines, err := harness.LogLines(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		all = append(all, lines...)
	}
	if len(all) != 2000 || all[0] != "line 1" || all[1999] != "line 2000" {
		t.Errorf("%d lines over %d files", len(all), len(files)+1)
	}
}

func TestStatsArePlausible(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	pod := b.RunPod("stats", `dd if=/dev/zero of=/file bs=1M count=3 2>/dev/null; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000`)
	b.Await("figures", func() bool {
		answer, err := b.Runtime.ContainerStats(b.Ctx(), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container})
		if err != nil {
			t.Fatal(err)
		}
		stats := answer.Stats
		return stats.Cpu.GetUsageCoreNanoSeconds().GetValue() > 10e6 && stats.Memory.GetWorkingSetBytes().GetValue() > 50<<10 &&
			stats.WritableLayer.GetUsedBytes().GetValue() >= 3<<20
	})
	answer, err := b.Runtime.PodSandboxStats(b.Ctx(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Stats.Linux.Containers) != 1 || answer.Stats.Linux.Network.GetDefaultInterface().GetName() != "eth0" {
		t.Errorf("sandbox stats %v", answer.Stats)
	}
}

func TestLogLinesAreSplitWhereTheConfigurationSays(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[runtime]\nmax_log_line_size = 1000\n"})
	pod := b.RunPod("split", `head -c 2500 /dev/zero | tr '\0' x; echo`)
	b.AwaitExit(pod.Container)
	data, err := os.ReadFile(pod.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		kinds = append(kinds, strings.Fields(line)[2])
	}
	if diff := cmp.Diff([]string{"P", "P", "F"}, kinds); diff != "" {
		t.Errorf("pieces of a line of 2500 bytes (-want +got):\n%s", diff)
	}
}
