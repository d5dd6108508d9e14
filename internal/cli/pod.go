package cli

import (
	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/imagecmd"
	"github.com/berthrun/berth/internal/cli/podcmd"
)

func newPod() *cobra.Command { return podcmd.New() }

func newImage() *cobra.Command { return imagecmd.New() }
