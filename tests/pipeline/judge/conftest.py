"""A browser for pages of evaluations."""

from tests.support.browser import browser as browser
from tests.support.browser import look as look
