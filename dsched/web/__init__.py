"""The HTTP interface of a core: admission, routes, answers. The only package that knows Klein."""
