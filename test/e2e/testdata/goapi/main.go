// Program goapi uses berth as programs of others do, by its packages below pkg. TestGoAPI builds it in a module of its
// own.
//
//	goapi cluster NAME IMAGE WAIT          creates a cluster, loads an image, and deletes the cluster after a line of input
//	goapi node FILE ROOT BERTH             applies a node file to a root directory, and prints the plan
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berthrun/berth/pkg/cluster"
	"github.com/berthrun/berth/pkg/kinds"
	"github.com/berthrun/berth/pkg/node"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return errors.New("goapi takes four arguments")
	}
	if args[0] == "node" {
		return applyNode(ctx, args[1], args[2], args[3])
	}
	wait, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	return useCluster(ctx, args[1], args[2], wait)
}

func useCluster(ctx context.Context, name, image string, wait time.Duration) (err error) {
	clusters, err := cluster.Open(ctx, cluster.Options{Warn: func(text string) { fmt.Fprintln(os.Stderr, "warning:", text) }})
	if err != nil {
		return err
	}
	kubeconfig, err := clusters.Create(ctx, cluster.CreateOptions{Name: name, Wait: wait})
	if err != nil {
		return err
	}
	defer func() {
		found, failed := clusters.Delete(ctx, name)
		if failed == nil && !found {
			failed = fmt.Errorf("cluster %s was not there to be deleted", name)
		}
		err = errors.Join(err, failed)
	}()
	if _, err := clusters.Create(ctx, cluster.CreateOptions{Name: name}); !errors.Is(err, kinds.Exists) {
		return fmt.Errorf("a second cluster %s: %w, want kind Exists", name, err)
	}
	if err := clusters.Load(ctx, name, cluster.LoadOptions{Images: []string{image}}); err != nil {
		return err
	}
	nodes, err := clusters.Nodes(ctx, name)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		fmt.Println("node", n.Name, n.Role, n.Running)
	}
	fmt.Println("ready", kubeconfig)
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

func applyNode(ctx context.Context, file, root, berth string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	o := node.Options{Root: root, Berth: berth}
	plan, err := node.MakePlan(ctx, text, o)
	if err != nil {
		return err
	}
	fmt.Println(string(plan.JSON))
	_, err = node.Apply(ctx, text, o)
	return err
}
