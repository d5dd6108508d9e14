package podcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podrun"
	"github.com/berthrun/berth/internal/cli/podrun/volumes"
	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

func (c *commands) newStop() *cobra.Command {
	var grace int64
	var which chosen
	cmd := &cobra.Command{
		Use:               "stop POD... | --all",
		Short:             "Stop pods: their containers with a grace period, then their network",
		Args:              which.check,
		ValidArgsFunction: c.completePods(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.forEach(cmd, args, func(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox) error {
				return stop(ctx, conn, pod, grace)
			})
		},
	}
	cmd.Flags().Int64VarP(&grace, "time", "t", 30, "grace period in seconds; then containers are killed")
	which.register(cmd)
	return cmd
}

func (c *commands) newRemove() *cobra.Command {
	var force bool
	var which chosen
	cmd := &cobra.Command{
		Use:               "rm POD... | --all",
		Short:             "Remove stopped pods, with what `berth pod run` made for them",
		Args:              which.check,
		ValidArgsFunction: c.completePods(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.forEach(cmd, args, func(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox) error {
				return c.remove(ctx, conn, pod, force)
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also remove running pods; kill their containers")
	which.register(cmd)
	return cmd
}

// chosen reports whether pods are named or all are selected.
type chosen struct{ all bool }

func (w *chosen) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&w.all, "all", "a", false, "every pod")
}

func (w *chosen) check(_ *cobra.Command, args []string) error {
	if w.all == (len(args) > 0) {
		return fmt.Errorf("name the pods, or use --all: %w", errs.Invalid)
	}
	return nil
}

// forEach calls a function for every named pod, or for all, also if it fails for one, and prints
// the names of those for which it succeeded.
func (c *commands) forEach(cmd *cobra.Command, names []string, do func(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox) error) error {
	return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
		all, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		var pods []*runtimeapi.PodSandbox
		var failed []error
		if len(names) == 0 {
			pods = all.Items
		}
		for _, name := range names {
			pod, err := choosePod(all.Items, name)
			if err != nil {
				failed = append(failed, err)
				continue
			}
			pods = append(pods, pod)
		}
		for _, pod := range pods {
			if err := do(ctx, conn, pod); err != nil {
				failed = append(failed, fmt.Errorf("pod %s: %w", podName(pod), err))
				continue
			}
			fmt.Fprintln(cmd.OutOrStdout(), podName(pod))
		}
		return errors.Join(failed...)
	})
}

// stop stops all containers at once, each with its grace period.
func stop(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox, grace int64) error {
	containers, err := containersOf(ctx, conn, pod)
	if err != nil {
		return err
	}
	results := make(chan error)
	for _, container := range containers {
		go func() {
			_, err := conn.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: container.Id, Timeout: grace})
			results <- errs.IgnoreNotFound(err)
		}()
	}
	var failed []error
	for range containers {
		failed = append(failed, <-results)
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	_, err = conn.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.Id})
	return err
}

func (c *commands) remove(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox, force bool) error {
	if pod.State == runtimeapi.PodSandboxState_SANDBOX_READY && !force {
		return fmt.Errorf("it is running: stop it first, or use --force: %w", errs.State)
	}
	if force {
		if err := stop(ctx, conn, pod, 0); err != nil {
			return err
		}
	}
	if _, err := conn.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
		return err
	}
	return c.removeFiles(pod)
}

// removeFiles removes the volumes and logs that `berth pod run` made for a pod.
func (c *commands) removeFiles(pod *runtimeapi.PodSandbox) error {
	meta := pod.Metadata
	if pod.Annotations[podyaml.RunAnnotation] == "" || !ownNames(meta) {
		return nil
	}
	volumeDir, volumeErr := madeDir(podrun.VolumeDir(c.volumeBase, meta.GetUid()), pod.Annotations[podyaml.VolumesAnnotation])
	logDir, logErr := madeDir(podrun.LogDir(c.logBase, meta.GetNamespace(), meta.GetName(), meta.GetUid()), pod.Annotations[podyaml.LogsAnnotation])
	return errors.Join(podrun.RemoveFiles(volumeDir, logDir), volumeErr, logErr)
}

// madeDir returns the directory of a pod that an annotation names. It is the usual one if there is no
// annotation, as on pods of an earlier berth. Other clients of the runtime write annotations, too: a
// directory elsewhere that `berth pod run` did not make is an error.
func madeDir(usual, annotated string) (string, error) {
	if annotated == "" || annotated == usual {
		return usual, nil
	}
	if _, err := os.Lstat(annotated); errors.Is(err, os.ErrNotExist) {
		return usual, nil // run has removed it
	}
	owned, err := volumes.IsOwned(annotated)
	if err != nil {
		return usual, err
	}
	if !owned || filepath.Base(annotated) != filepath.Base(usual) {
		return usual, fmt.Errorf("the pod is removed, but %s stays: `berth pod run` did not make it: %w", annotated, errs.State)
	}
	return annotated, nil
}

// ownNames reports whether the names can be parts of the paths that we made.
func ownNames(meta *runtimeapi.PodSandboxMetadata) bool {
	return isPathPart(meta.GetUid()) && isPathPart(meta.GetNamespace()) && isPathPart(meta.GetName())
}

func isPathPart(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
