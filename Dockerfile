# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors

# Nothing but the programs that make build has built: no shell, no libraries, and
# nothing that the build would fetch. make image builds both.
FROM scratch
ARG VERSION=devel
LABEL org.opencontainers.image.title="roce-cni" \
      org.opencontainers.image.description="CNI plugin and node agent for pods on RoCE NICs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
# The reaper is not root, and who has built this may have a strict umask.
COPY --chmod=0644 LICENSE /LICENSE
COPY --chmod=0755 bin/roce bin/roce-ipam /plugins/
COPY --chmod=0755 bin/rocectl /rocectl
COPY --chmod=0755 bin/roce-env /pod/
ENTRYPOINT ["/rocectl"]
