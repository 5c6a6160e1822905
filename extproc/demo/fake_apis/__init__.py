"""All APIs that the fake provider has; one file for each family."""

from extproc.demo.fake_apis import wires
from extproc.demo.fake_apis.api import Api

APIS: tuple[Api, ...] = (*wires.APIS,)
