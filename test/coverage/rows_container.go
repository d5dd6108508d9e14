package main

import "slices"

// containerRows are the fields of ContainerConfig.
func containerRows() []row {
	return slices.Concat(programRows(), mountRows(), limitRows(), securityRows())
}

// programRows are about the image, the program and its streams.
func programRows() []row {
	const containers, devices = "TestFieldsOfContainers", "TestFieldsOfDevices"
	return []row{
		{
			name: "metadata, image{image, annotations, user_specified_image, runtime_handler, image_ref}", test: containers,
			covers: []string{"metadata.{name,attempt}", "image.{image,annotations,user_specified_image,runtime_handler,image_ref}"},
			note:   "The handler of the pod says where the image's layers are; see [lazy images](howto/lazy-images.md), and for which platform it is; see [platforms](howto/platforms.md). image_ref is the client's own note.",
		},
		{name: "command / args", test: containers, covers: []string{"command", "args"}},
		{
			name: "working_dir, envs", test: containers, covers: []string{"working_dir", "envs.{key,value}"},
			note: "An OCI spec is text. A byte of a value that is not UTF-8 reaches the program as U+FFFD, with every runtime. berth logs a warning.",
		},
		{name: "devices{host,container,permissions}", test: devices, covers: []string{"devices.{host_path,container_path,permissions}"}},
		{name: "CDI_devices", test: devices, covers: []string{"CDI_devices.name"}},
		{name: "labels, annotations", test: containers, covers: []string{"labels", "annotations"}},
		{name: "log_path, tty, stdin, stdin_once", test: containers, covers: []string{"log_path", "tty", "stdin", "stdin_once"}},
		{name: "stop_signal (CRI enum)", test: "TestFieldsOfSecurityContext", covers: []string{"stop_signal"}},
	}
}

func mountRows() []row {
	const mounts = "TestFieldMounts"
	return []row{
		{name: "mounts.readonly/host/container", test: mounts, covers: []string{"mounts.{readonly,host_path,container_path}"}},
		{name: "mounts.selinux_relabel", test: "TestFieldsOfSELinux", covers: []string{"mounts.selinux_relabel"}, needs: []string{seLinux}},
		{name: "mounts.propagation", test: mounts, covers: []string{"mounts.propagation"}},
		{name: "mounts.recursive_read_only", test: mounts, covers: []string{"mounts.recursive_read_only"}, needs: []string{recursiveRO}},
		{
			name: "mounts.uid/gidMappings (idmap)", test: mounts, covers: []string{"mounts.{uidMappings,gidMappings}.{host_id,container_id,length}"},
			needs: []string{userNamespaces, mappedMounts},
		},
		{
			name: "mounts.image (+image_sub_path)", test: "TestFieldMountsImage", whole: true,
			covers: []string{"mounts.image.{image,annotations,user_specified_image,runtime_handler,image_ref}", "mounts.image_sub_path"},
		},
		{name: "mounts.mount_options (noexec/nodev/nosuid)", test: mounts, covers: []string{"mounts.mount_options"}},
	}
}

func limitRows() []row {
	const resources, at = "TestFieldsOfResources", "linux.resources."
	return []row{
		{
			name: "resources cpu_period/quota/shares, memory_limit, oom_score_adj", test: resources,
			covers: []string{at + "{cpu_period,cpu_quota,cpu_shares,memory_limit_in_bytes,oom_score_adj}"}, needs: []string{sysResource},
		},
		{name: "cpuset_cpus/mems", test: resources, covers: []string{at + "{cpuset_cpus,cpuset_mems}"}},
		{name: "hugepage_limits", test: resources, covers: []string{at + "hugepage_limits.{page_size,limit}"}, needs: []string{hugetlb}},
		{name: "unified (cgroup v2 raw)", test: resources, covers: []string{at + "unified"}, needs: []string{cgroupV2}},
		{name: "memory_swap_limit", test: resources, covers: []string{at + "memory_swap_limit_in_bytes"}, needs: []string{swapLimit}},
	}
}

func securityRows() []row {
	const context = "TestFieldsOfSecurityContext"
	return []row{
		{name: "sc.capabilities add/drop", test: context, covers: []string{security + "capabilities.{add_capabilities,drop_capabilities}"}},
		{name: "sc.add_ambient_capabilities", test: context, covers: []string{security + "capabilities.add_ambient_capabilities"}},
		{name: "sc.privileged", test: "TestFieldsOfDevices", covers: []string{security + "privileged"}},
		{
			name: "sc.namespace pid CONTAINER/POD/NODE/TARGET", test: context,
			covers: []string{security + "namespace_options.{network,pid,ipc,target_id,userns_options." + usernsFields + "}"},
			note:   "A container is in its pod's network, IPC and user namespaces. berth refuses a request with others.",
		},
		{
			name: "sc.selinux_options", test: "TestFieldsOfSELinux", covers: []string{security + "selinux_options.{user,role,type,level}"},
			needs: []string{seLinux},
		},
		{
			name: "run_as_user/group/username, supplemental_groups + policy Merge/Strict", test: context,
			covers: []string{security + "{run_as_user,run_as_group,run_as_username,supplemental_groups,supplemental_groups_policy}"},
		},
		{name: "readonly_rootfs, no_new_privs", test: context, covers: []string{security + "{readonly_rootfs,no_new_privs}"}},
		{name: "masked_paths / readonly_paths (procMount)", test: context, covers: []string{security + "{masked_paths,readonly_paths}"}},
		{
			name: "seccomp RuntimeDefault/Unconfined/Localhost", test: context,
			covers: []string{security + "{seccomp.{profile_type,localhost_ref},seccomp_profile_path}"}, needs: []string{seccomp},
		},
		{
			name: "apparmor", test: context, covers: []string{security + "{apparmor.{profile_type,localhost_ref},apparmor_profile}"},
			needs: []string{appArmor, appArmorParser},
			note:  "`TestFieldsOfAppArmor` tests each kind of profile on a host that enforces them.",
		},
	}
}
