package imagecmd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
)

func (c *commands) newList() *cobra.Command {
	var output show.Flag
	var quiet bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List images",
		Example: "  berth image ls\n  berth image rm $(berth image ls -q)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				resp, err := conn.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
				if err != nil {
					return err
				}
				if quiet {
					return printIDs(cmd.OutOrStdout(), resp.Images)
				}
				return output.Print(cmd.OutOrStdout(), resp, func(w io.Writer) error { return table(w, resp.Images) })
			})
		},
	}
	output.Register(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print IDs only, in full, one for each image")
	cmd.MarkFlagsMutuallyExclusive("quiet", "output")
	return cmd
}

func printIDs(w io.Writer, images []*runtimeapi.Image) error {
	ids := make([]string, len(images))
	for i, img := range images {
		ids[i] = img.Id + "\n"
	}
	slices.Sort(ids)
	_, err := io.WriteString(w, strings.Join(slices.Compact(ids), ""))
	return err
}

// table has a row for each name of each image. The type of an OCI artifact is its artifact type. That of an image says for
// which platform it is, if that is not the node's.
func table(w io.Writer, images []*runtimeapi.Image) error {
	var rows [][]string
	for _, img := range images {
		names := img.RepoTags
		if len(names) == 0 {
			names = img.RepoDigests
		}
		if len(names) == 0 {
			names = []string{""}
		}
		pinned := ""
		if img.Pinned {
			pinned = "yes"
		}
		annotations := img.GetSpec().GetAnnotations()
		kind := cmp.Or(annotations[image.AnnotationArtifactType], "image")
		if platform := annotations[image.AnnotationPlatform]; platform != "" {
			kind += " for " + platform
		}
		for _, name := range names {
			rows = append(rows, []string{show.Or(name), show.ID(img.Id), show.Size(img.Size), show.Or(pinned), kind})
		}
	}
	slices.SortFunc(rows, func(a, b []string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return show.Table(w, []string{"IMAGE", "ID", "SIZE", "PINNED", "TYPE"}, rows)
}

func find(ctx context.Context, conn *criclient.Conn, spec *runtimeapi.ImageSpec) (*runtimeapi.ImageStatusResponse, error) {
	resp, err := conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec, Verbose: true})
	if err != nil {
		return nil, err
	}
	if resp.Image == nil {
		return nil, absentError(spec)
	}
	return resp, nil
}

// absentError is the error of an image that the node does not have.
func absentError(spec *runtimeapi.ImageSpec) error {
	if spec.RuntimeHandler != "" {
		return fmt.Errorf("the node does not have image %q for handler %s: %w", spec.Image, spec.RuntimeHandler, errs.NotFound)
	}
	return fmt.Errorf("the node does not have image %q: %w", spec.Image, errs.NotFound)
}

func (c *commands) newInspect() *cobra.Command {
	var output show.Flag
	var handler string
	cmd := &cobra.Command{
		Use:               "inspect IMAGE",
		Short:             "Show the details of an image",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				resp, err := find(ctx, conn, &runtimeapi.ImageSpec{Image: args[0], RuntimeHandler: handler})
				if err != nil {
					return err
				}
				status, err := show.Message(resp.Image)
				if err != nil {
					return err
				}
				value := map[string]any{"status": status, "info": show.Info(resp.Info)}
				return output.Print(cmd.OutOrStdout(), value, func(w io.Writer) error { return describe(w, resp) })
			})
		},
	}
	registerHandler(cmd, &handler)
	output.Register(cmd)
	return cmd
}

func describe(w io.Writer, resp *runtimeapi.ImageStatusResponse) error {
	img := resp.Image
	user := img.Username
	if img.Uid != nil {
		user = fmt.Sprint(img.Uid.Value)
	}
	rows := [][]string{
		{"Names:", show.Or(strings.Join(img.RepoTags, " "))},
		{"Digests:", show.Or(strings.Join(img.RepoDigests, " "))},
		{"Size:", show.Size(img.Size)},
		{"User:", show.Or(user)},
		{"Pinned:", fmt.Sprint(img.Pinned)},
	}
	if kind := img.GetSpec().GetAnnotations()[image.AnnotationArtifactType]; kind != "" {
		rows = append(rows, []string{"Type:", "OCI artifact, " + kind})
	}
	if platform := img.GetSpec().GetAnnotations()[image.AnnotationPlatform]; platform != "" {
		rows = append(rows, []string{"Platform:", platform})
	}
	if err := show.Table(w, []string{"ID:", img.Id}, rows); err != nil {
		return err
	}
	if len(resp.Info) == 0 {
		return nil
	}
	return show.Value(w, show.Info(resp.Info), "yaml")
}
