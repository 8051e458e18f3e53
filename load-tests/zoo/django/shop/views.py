"""A page of what was sold, by article. Each request writes one more sale, and takes it back."""

from decimal import Decimal

from django.db import transaction
from django.db.models import F, Sum
from django.shortcuts import render

from .models import Article, Sale


def filled():
    """Articles and sales, made at the first request."""
    with transaction.atomic():
        for number in range(1, 11):
            price = {"price": Decimal(number) / 4}
            article, made = Article.objects.get_or_create(name=f"article {number}", defaults=price)
            if made:
                Sale.objects.bulk_create(Sale(article=article, quantity=q) for q in range(1, 21))


def sold(request):
    filled()
    with transaction.atomic():
        extra = Sale.objects.create(article=Article.objects.first(), quantity=1000)
        articles = Article.objects.annotate(sold=Sum("sales__quantity"), revenue=Sum(F("sales__quantity") * F("price")))
        page = render(request, "sold.html", {"articles": articles.order_by("id")})
        extra.delete()
    return page
