package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/profile"
)

// Daemon returns the sources that a running daemon has. conn is a connection to it, nil for a daemon that is down, with
// the reason. cpu is how long its use of the CPU is recorded, 0 for not at all.
func Daemon(conn *criclient.Conn, down error, cpu time.Duration) []Source {
	if conn == nil {
		return []Source{{Name: "daemon", Collect: func(context.Context, Add) error { return down }}}
	}
	with := func(name string, collect func(ctx context.Context, conn *criclient.Conn, add Add) error) Source {
		return Source{Name: name, Collect: func(ctx context.Context, add Add) error {
			return collect(ctx, conn, add)
		}}
	}
	sources := []Source{
		with("info", collectInfo),
		with("jobs", collectJobs),
		with("pods", collectPods),
		with("metrics", collectMetrics),
		with("goroutines", func(ctx context.Context, conn *criclient.Conn, add Add) error {
			return collectProfile(ctx, conn, add, "goroutines.txt", Text, berthapi.ProfileRequest{Name: "goroutine", Text: true})
		}),
		with("heap", func(ctx context.Context, conn *criclient.Conn, add Add) error {
			return collectProfile(ctx, conn, add, "heap.pprof", Binary, berthapi.ProfileRequest{Name: "heap"})
		}),
	}
	if cpu > 0 {
		source := with("cpu", func(ctx context.Context, conn *criclient.Conn, add Add) error {
			return collectProfile(ctx, conn, add, "cpu.pprof", Binary, berthapi.ProfileRequest{Name: profile.CPU, Duration: cpu})
		})
		source.Time = cpu + sourceTime
		sources = append(sources, source)
	}
	return sources
}

// addMessage adds a message of CRI.
func addMessage(add Add, name string, message proto.Message) error {
	text, err := show.Message(message)
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", name, err)
	}
	return add(name, JSON, text)
}

func addValue(add Add, name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", name, err)
	}
	return add(name, JSON, text)
}

// collectInfo has what `berth info -o json` shows.
func collectInfo(ctx context.Context, conn *criclient.Conn, add Add) error {
	version, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return err
	}
	status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return err
	}
	if err := addMessage(add, "daemon/version.json", version); err != nil {
		return err
	}
	return addMessage(add, "daemon/info.json", status)
}

func collectJobs(ctx context.Context, conn *criclient.Conn, add Add) error {
	jobs, err := conn.Berth.ListJobs(ctx)
	if err != nil {
		return err
	}
	return addValue(add, "daemon/jobs.json", berthapi.JobList{Jobs: jobs})
}

// collectPods has the lists, which show what clients see of the records.
func collectPods(ctx context.Context, conn *criclient.Conn, add Add) error {
	pods, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	if err := addMessage(add, "daemon/pods.json", pods); err != nil {
		return err
	}
	containers, err := conn.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	if err := addMessage(add, "daemon/containers.json", containers); err != nil {
		return err
	}
	images, err := conn.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return err
	}
	return addMessage(add, "daemon/images.json", images)
}

func collectMetrics(ctx context.Context, conn *criclient.Conn, add Add) error {
	text, err := conn.Berth.Metrics(ctx)
	if err != nil {
		return err
	}
	return add("daemon/metrics.txt", Text, text)
}

func collectProfile(ctx context.Context, conn *criclient.Conn, add Add, name string, format Format, req berthapi.ProfileRequest) error {
	var content bytes.Buffer
	if err := conn.Berth.Profile(ctx, req, &content); err != nil {
		return err
	}
	return add("daemon/"+name, format, content.Bytes())
}
