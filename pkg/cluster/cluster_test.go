package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/pkg/cluster"
	"github.com/berthrun/berth/pkg/kinds"
)

// A program creates a cluster for its tests, loads an image into it, and deletes it.
func Example() {
	ctx := context.Background()
	clusters, err := cluster.Open(ctx, cluster.Options{Warn: func(text string) { fmt.Println("warning:", text) }})
	if err != nil {
		fmt.Println(err)
		return
	}
	kubeconfig, err := clusters.Create(ctx, cluster.CreateOptions{Name: "tests", Wait: 2 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer clusters.Delete(ctx, "tests")
	if err := clusters.Load(ctx, "tests", cluster.LoadOptions{Images: []string{"app:1"}}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the tests use", kubeconfig)
}

func open(t *testing.T) *cluster.Clusters {
	t.Helper()
	home := clustertest.InstallPodman(t)
	clusters, err := cluster.Open(t.Context(), cluster.Options{Kubeconfig: filepath.Join(home, "kubeconfig")})
	if err != nil {
		t.Fatal(err)
	}
	return clusters
}

// TestWithoutClusters: what a program gets of a provider that has no cluster.
func TestWithoutClusters(t *testing.T) {
	clusters, ctx := open(t), t.Context()
	if names, err := clusters.List(ctx); err != nil || len(names) != 0 {
		t.Errorf("List: %v, %v", names, err)
	}
	if found, err := clusters.Delete(ctx, "dev"); err != nil || found {
		t.Errorf("Delete: %v, %v", found, err)
	}
	for call, err := range map[string]error{
		"Nodes":       second(clusters.Nodes(ctx, "dev")),
		"Kubeconfig":  second(clusters.Kubeconfig(ctx, "dev", false)),
		"Stop":        clusters.Stop(ctx, "dev"),
		"Start":       clusters.Start(ctx, "dev", 0),
		"Load":        clusters.Load(ctx, "dev", cluster.LoadOptions{Images: []string{"app:1"}}),
		"CollectLogs": clusters.CollectLogs(ctx, "dev", t.TempDir()),
	} {
		if !errors.Is(err, kinds.NotFound) {
			t.Errorf("%s: %v, want kind NotFound", call, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestFileWithFaults: the error names each fault with its place.
func TestFileWithFaults(t *testing.T) {
	file := "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: boss\n"
	_, err := open(t).Create(t.Context(), cluster.CreateOptions{File: []byte(file)})
	if !errors.Is(err, kinds.Invalid) || !strings.Contains(err.Error(), "cluster file:4:") || !strings.Contains(err.Error(), "boss") {
		t.Errorf("%v", err)
	}
}

func TestOpenOfAnUnknownProvider(t *testing.T) {
	if _, err := cluster.Open(t.Context(), cluster.Options{Provider: "lxd"}); err == nil || !strings.Contains(err.Error(), "lxd") {
		t.Errorf("%v", err)
	}
}
